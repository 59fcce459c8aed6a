"""A copy says what it is a copy of for as long as it is kept, whatever became of it; and so does its original."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.lifecycle.tasks.copy import CopyOptions, copy_task
from holdfast.engine.maintenance.retention import begin_today
from holdfast.engine.queries.task_detail import COPIES_MAX, show_task
from holdfast.store.statements import sql
from holdfast.testing.factories import a_failure, a_task


@pytest.fixture
def copied(harness):
    """Give the id of a task and a way to copy it and claim the copy."""

    async def claimed(original):
        accepted, _ = await copy_task(harness.engine, 1, int(original), {"order": 8}, CopyOptions())
        return await harness.claim_task(str(accepted.task_ids[0]))

    return claimed


async def test_a_copy_says_in_the_view_what_it_is_a_copy_of(harness, copied):
    original = (await harness.enqueue(a_task())).task_id
    await copied(original)
    await harness.settle(await copied(original), Completed(b"1"))
    await harness.settle(await copied(original), Failed(a_failure("validation: no such order")))
    await harness.settle(await copied(original), Failed(a_failure()))
    accepted, _ = await copy_task(harness.engine, 1, int(original), {}, CopyOptions())
    await harness.cancel(str(accepted.task_ids[0]))

    rows = await harness.engine.database.fetch(
        "select state, original_execution from holdfast.tasks where task_id <> $1 order by task_id::bigint", original
    )
    states = ["running", "completed", "failed", "failed", "canceled"]
    assert [tuple(row) for row in rows] == [(state, original) for state in states]


@pytest.fixture
def copies(harness):
    """The copies that a task names."""

    async def named(task_id):
        engine = harness.engine
        return (await show_task(engine.database, engine.catalog, 1, int(task_id))).copies

    return named


async def test_a_task_names_its_copies_newest_first_on_whichever_day_they_were_made(harness, copied, copies, clock):
    original = (await harness.enqueue(a_task())).task_id
    assert await copies(original) == []
    first = (await copied(original)).task_id
    await clock.advance("1d")
    await begin_today(harness.engine.database)
    second = (await copied(original)).task_id
    assert (await copies(original), await copies(first)) == ([second, first], [])
    rows = await harness.engine.database.fetch(
        "select task_id, tenant from holdfast.copies where original_execution = $1 order by task_id::bigint", original
    )
    assert [tuple(row) for row in rows] == [(first, "default"), (second, "default")]


async def test_of_many_copies_a_task_names_the_newest(harness, copies):
    original = (await harness.enqueue(a_task())).task_id
    made = [await copy_task(harness.engine, 1, int(original), {}, CopyOptions()) for _ in range(COPIES_MAX + 2)]
    assert await copies(original) == [str(one.task_ids[0]) for one, _ in reversed(made[2:])]


async def test_copies_are_found_by_an_index_that_every_day_has(harness, clock):
    database = harness.engine.database
    await clock.advance("1d")
    await begin_today(database)
    valid = await database.fetchval(
        "select indisvalid from pg_index where indexrelid = 'holdfast.body_copies'::regclass"
    )
    inherited = "select count(*) from pg_inherits where inhparent = $1::text::regclass"
    days = [await database.fetchval(inherited, f"holdfast.{name}") for name in ("body", "body_copies")]
    assert valid and days[0] == days[1] > 1
    async with database.transaction() as session:
        await session.execute("set local enable_seqscan = off")
        plan = await session.fetch(
            f"explain {sql('task_copies')}".replace("$1", "7").replace("$2", "1").replace("$3", "20")
        )
    assert "Seq Scan" not in str(plan) and "body_0_original_task_id_task_id_idx" in str(plan)
