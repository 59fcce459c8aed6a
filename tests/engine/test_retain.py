"""History goes by whole blocks of ids, never under work that is not over, and nobody waits for it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.states import TaskState
from holdfast.engine.maintenance.retention import begin_today, drop_old, retain_once
from holdfast.errors import NotFound
from holdfast.testing import factories as a


async def blocks(dispatcher) -> list[int]:
    rows = await dispatcher.engine.database.fetch("select block from holdfast.block order by block")
    return [row[0] for row in rows]


async def next_day(dispatcher, clock, *, days=1):
    await clock.advance(f"{days}d")
    await begin_today(dispatcher.engine.database)


async def test_the_first_day_has_one_block(dispatcher):
    await begin_today(dispatcher.engine.database)
    await begin_today(dispatcher.engine.database)
    assert len(await blocks(dispatcher)) <= 2  # two if the template is from yesterday


async def test_a_new_day_begins_a_new_block_and_ids_follow(dispatcher, clock):
    old = await dispatcher.enqueue(a.a_task())
    await next_day(dispatcher, clock)
    new = await dispatcher.enqueue(a.a_task())
    first_id = await dispatcher.engine.database.fetchval("select max(first_id) from holdfast.block")
    assert int(old.task_id) < first_id < int(new.task_id)


async def test_work_of_yesterday_goes_on_today(dispatcher, clock):
    lease = await a.a_running_task(dispatcher)
    await next_day(dispatcher, clock)
    await dispatcher.settle(lease, Completed(b"1"))
    assert (await dispatcher.task(lease.task_id)).state is TaskState.COMPLETED


async def test_many_processes_at_once_begin_one_block(dispatcher, clock):
    await clock.advance("1d")
    before = len(await blocks(dispatcher))
    await asyncio.gather(*(retain_once(dispatcher.engine.database, days=30) for _ in range(4)))
    assert len(await blocks(dispatcher)) == before + 1


async def test_a_block_that_was_not_committed_leaves_ids_storable(dispatcher):
    async with dispatcher.engine.database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        await session.fetch("select holdfast.begin_block()")
        await transaction.rollback()
    assert (await dispatcher.enqueue(a.a_task())).is_new


async def test_beginning_a_block_waits_for_no_open_transaction(dispatcher, clock):
    await clock.advance("1d")
    async with dispatcher.engine.database.transaction() as session:
        await dispatcher.enqueue(a.a_task(), session=session)
        before = len(await blocks(dispatcher))
        await asyncio.wait_for(begin_today(dispatcher.engine.database), 5)
        assert len(await blocks(dispatcher)) == before + 1


async def test_a_finished_block_is_dropped_when_its_time_is_over(dispatcher, clock):
    task_id = await a.a_completed_task(dispatcher)
    await next_day(dispatcher, clock)
    await clock.advance("31d")
    assert await drop_old(dispatcher.engine.database, days=30) >= 1
    with pytest.raises(NotFound):
        await dispatcher.task(task_id)


async def test_a_finished_block_is_kept_until_its_time_is_over(dispatcher, clock):
    task_id = await a.a_completed_task(dispatcher)
    await next_day(dispatcher, clock)
    await clock.advance("29d")
    assert (await retain_once(dispatcher.engine.database, days=30)).dropped == 0
    assert (await dispatcher.task(task_id)).state is TaskState.COMPLETED


@pytest.mark.parametrize("stage", ["failed", "retrying"])
async def test_a_block_with_work_that_may_run_again_stays(dispatcher, clock, stage):
    task_id = await getattr(a, f"a_{stage}_task")(dispatcher)
    await next_day(dispatcher, clock)
    await clock.advance("365d")
    await retain_once(dispatcher.engine.database, days=30)
    assert (await dispatcher.task(task_id)).attempt <= 1


async def test_a_block_that_stays_does_not_keep_younger_ones(dispatcher, clock):
    await a.a_failed_task(dispatcher)
    await next_day(dispatcher, clock)
    gone = await a.a_completed_task(dispatcher)
    await next_day(dispatcher, clock)
    await clock.advance("365d")
    await retain_once(dispatcher.engine.database, days=30)
    with pytest.raises(NotFound):
        await dispatcher.task(gone)


async def test_a_block_is_dropped_later_though_its_neighbour_went_first(dispatcher, clock):
    kept = await a.a_failed_task(dispatcher)
    for _ in range(2):
        await next_day(dispatcher, clock)
    await clock.advance("365d")
    await retain_once(dispatcher.engine.database, days=30)
    await dispatcher.redrive(kept)
    await dispatcher.settle(await dispatcher.claim_one(), Completed(b"1"))
    assert (await retain_once(dispatcher.engine.database, days=30)).dropped == 0
    assert (await dispatcher.task(kept)).state is TaskState.COMPLETED
    await clock.advance("31d")
    assert (await retain_once(dispatcher.engine.database, days=30)).dropped >= 1
    with pytest.raises(NotFound):
        await dispatcher.task(kept)


async def test_a_dropped_tasks_key_is_free_again(dispatcher, clock):
    await a.a_completed_task(dispatcher, key="order-7")
    await next_day(dispatcher, clock)
    await clock.advance("31d")
    await drop_old(dispatcher.engine.database, days=30)
    assert (await dispatcher.enqueue(a.a_task(key="order-7"))).is_new


async def test_dropping_gives_up_soon_when_somebody_still_reads(dispatcher, clock, caplog):
    await next_day(dispatcher, clock)
    await clock.advance("31d")
    async with dispatcher.engine.database.transaction() as session:
        await session.fetch("select count(*) from holdfast.body")
        assert await asyncio.wait_for(drop_old(dispatcher.engine.database, days=30), 5) == 0
    assert "old history is in use" in caplog.text
    assert await drop_old(dispatcher.engine.database, days=30) == 1


async def test_old_events_and_workers_are_forgotten(dispatcher, clock):
    await a.a_completed_task(dispatcher)
    await dispatcher.retire("first")
    await clock.advance("31d")
    await retain_once(dispatcher.engine.database, days=30)
    counts = await dispatcher.engine.database.fetchrow(
        "select (select count(*) from holdfast.event), (select count(*) from holdfast.worker)"
    )
    assert tuple(counts) == (0, 0)
