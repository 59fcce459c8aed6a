"""A task that is run again begins a new life; its history keeps them apart."""

from __future__ import annotations

from holdfast.core.tasks.outcome import Completed
from holdfast.testing.factories import a_failed_task


async def test_a_revived_task_counts_only_what_its_new_generation_spent(dispatcher):
    task_id = await a_failed_task(dispatcher)
    await dispatcher.redrive(task_id)
    await dispatcher.settle(await dispatcher.claim_one(), Completed(b"null"))

    row = await dispatcher.task(task_id)
    assert (row.state, row.generation, row.retry_count) == ("completed", 2, 0)
