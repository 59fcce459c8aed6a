"""History goes by whole blocks of ids, never under work that is not over, and nobody waits for it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.states import TaskState
from holdfast.engine.maintenance.retention import begin_today, drop_old, retain_once
from holdfast.errors import NotFound
from holdfast.testing import factories as a


async def blocks(harness) -> list[int]:
    rows = await harness.engine.database.fetch("select block from holdfast.block order by block")
    return [row[0] for row in rows]


async def next_day(harness, clock, *, days=1):
    await clock.advance(f"{days}d")
    await begin_today(harness.engine.database)


async def test_the_first_day_has_one_block(harness):
    await begin_today(harness.engine.database)
    await begin_today(harness.engine.database)
    assert len(await blocks(harness)) <= 2  # two if the template is from yesterday


async def test_a_new_day_begins_a_new_block_and_ids_follow(harness, clock):
    old = await harness.enqueue(a.a_task())
    await next_day(harness, clock)
    new = await harness.enqueue(a.a_task())
    first_id = await harness.engine.database.fetchval("select max(first_id) from holdfast.block")
    assert int(old.task_id) < first_id < int(new.task_id)


async def test_work_of_yesterday_goes_on_today(harness, clock):
    lease = await a.a_running_task(harness)
    await next_day(harness, clock)
    await harness.settle(lease, Completed(b"1"))
    assert (await harness.task(lease.task_id)).state is TaskState.COMPLETED


async def test_many_processes_at_once_begin_one_block(harness, clock):
    await clock.advance("1d")
    before = len(await blocks(harness))
    await asyncio.gather(*(retain_once(harness.engine.database, days=30) for _ in range(4)))
    assert len(await blocks(harness)) == before + 1


async def test_a_block_that_was_not_committed_leaves_ids_storable(harness):
    async with harness.engine.database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        await session.fetch("select holdfast.begin_block()")
        await transaction.rollback()
    assert (await harness.enqueue(a.a_task())).is_new


async def test_beginning_a_block_waits_for_no_open_transaction(harness, clock):
    await clock.advance("1d")
    async with harness.engine.database.transaction() as session:
        await harness.enqueue(a.a_task(), session=session)
        before = len(await blocks(harness))
        await asyncio.wait_for(begin_today(harness.engine.database), 5)
        assert len(await blocks(harness)) == before + 1


async def test_a_finished_block_is_dropped_when_its_time_is_over(harness, clock):
    task_id = await a.a_completed_task(harness)
    await next_day(harness, clock)
    await clock.advance("31d")
    assert await drop_old(harness.engine.database, days=30) >= 1
    with pytest.raises(NotFound):
        await harness.task(task_id)


async def test_a_finished_block_is_kept_until_its_time_is_over(harness, clock):
    task_id = await a.a_completed_task(harness)
    await next_day(harness, clock)
    await clock.advance("29d")
    assert (await retain_once(harness.engine.database, days=30)).dropped == 0
    assert (await harness.task(task_id)).state is TaskState.COMPLETED


@pytest.mark.parametrize("stage", ["failed", "retrying"])
async def test_a_block_with_work_that_may_run_again_stays(harness, clock, stage):
    task_id = await getattr(a, f"a_{stage}_task")(harness)
    await next_day(harness, clock)
    await clock.advance("365d")
    await retain_once(harness.engine.database, days=30)
    assert (await harness.task(task_id)).attempt <= 1


async def test_a_block_that_stays_does_not_keep_younger_ones(harness, clock):
    await a.a_failed_task(harness)
    await next_day(harness, clock)
    gone = await a.a_completed_task(harness)
    await next_day(harness, clock)
    await clock.advance("365d")
    await retain_once(harness.engine.database, days=30)
    with pytest.raises(NotFound):
        await harness.task(gone)


async def test_a_block_is_dropped_later_though_its_neighbour_went_first(harness, clock):
    kept = await a.a_failed_task(harness)
    for _ in range(2):
        await next_day(harness, clock)
    await clock.advance("365d")
    await retain_once(harness.engine.database, days=30)
    await harness.redrive(kept)
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    assert (await retain_once(harness.engine.database, days=30)).dropped == 0
    assert (await harness.task(kept)).state is TaskState.COMPLETED
    await clock.advance("31d")
    assert (await retain_once(harness.engine.database, days=30)).dropped >= 1
    with pytest.raises(NotFound):
        await harness.task(kept)


async def test_a_dropped_tasks_key_is_free_again(harness, clock):
    await a.a_completed_task(harness, key="order-7")
    await next_day(harness, clock)
    await clock.advance("31d")
    await drop_old(harness.engine.database, days=30)
    assert (await harness.enqueue(a.a_task(key="order-7"))).is_new


async def test_dropping_gives_up_soon_when_somebody_still_reads(harness, clock, caplog):
    await next_day(harness, clock)
    await clock.advance("31d")
    async with harness.engine.database.transaction() as session:
        await session.fetch("select count(*) from holdfast.body")
        assert await asyncio.wait_for(drop_old(harness.engine.database, days=30), 5) == 0
    assert "old history is in use" in caplog.text
    assert await drop_old(harness.engine.database, days=30) == 1


async def test_old_events_and_workers_are_forgotten(harness, clock):
    await a.a_completed_task(harness)
    await harness.retire("first")
    await clock.advance("31d")
    await retain_once(harness.engine.database, days=30)
    counts = await harness.engine.database.fetchrow(
        "select (select count(*) from holdfast.event), (select count(*) from holdfast.worker)"
    )
    assert tuple(counts) == (0, 0)
