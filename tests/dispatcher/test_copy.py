"""A copy says what it is a copy of for as long as it is kept, whatever became of it."""

from __future__ import annotations

import pytest

from holdfast.core.outcome import Completed, Failed
from holdfast.dispatcher.copy import CopyOptions, copy_task
from holdfast.testing.factories import a_failure, a_task


@pytest.fixture
def copied(dispatcher):
    """Give the id of a task and a way to copy it and claim the copy."""

    async def claimed(original):
        accepted, _ = await copy_task(dispatcher.engine, 1, int(original), {"order": 8}, CopyOptions())
        return await dispatcher.claim_task(str(accepted.task_ids[0]))

    return claimed


async def test_a_copy_says_in_the_view_what_it_is_a_copy_of(dispatcher, copied):
    original = (await dispatcher.enqueue(a_task())).task_id
    await copied(original)
    await dispatcher.settle(await copied(original), Completed(b"1"))
    await dispatcher.settle(await copied(original), Failed(a_failure("validation: no such order")))
    await dispatcher.settle(await copied(original), Failed(a_failure()))
    accepted, _ = await copy_task(dispatcher.engine, 1, int(original), {}, CopyOptions())
    await dispatcher.cancel(str(accepted.task_ids[0]))

    rows = await dispatcher.engine.database.fetch(
        "select state, original_execution from holdfast.tasks where task_id <> $1 order by task_id::bigint", original
    )
    states = ["running", "completed", "failed", "failed", "canceled"]
    assert [tuple(row) for row in rows] == [(state, original) for state in states]
