"""Events tell what happened, and a reader that resumes misses nothing and sees nothing twice."""

from __future__ import annotations

import asyncio

from holdfast.core.tasks.outcome import Completed, Failed, Released
from holdfast.engine.queries.events import START, events_after
from holdfast.testing import factories as a

SETTLED = "select coalesce(max(xid) < pg_snapshot_xmin(pg_current_snapshot()), true) from holdfast.event"


async def until_settled(dispatcher):
    """Wait for transactions of other tests on the same server: readers stop at the oldest open one of all."""
    while not await dispatcher.engine.database.fetchval(SETTLED):
        continue


async def kinds(dispatcher) -> list[str]:
    await until_settled(dispatcher)
    return [event.kind for event in (await events_after(dispatcher.engine.database, 1)).events]


async def read_on(database, cursor, *, limit):
    """Everything from a cursor on, a few batches at a time."""
    found = []
    while events := (await events_after(database, 1, cursor, limit=limit)).events:
        found += events
        cursor = events[-1].cursor
    return found, cursor


async def test_a_completed_task_was_started_and_completed(dispatcher):
    await a.a_completed_task(dispatcher)
    assert await kinds(dispatcher) == ["task.started", "task.completed"]


async def test_a_retried_task_tells_each_attempt(dispatcher):
    lease = await a.a_running_task(dispatcher, base_backoff_secs=0)
    await dispatcher.settle(lease, Failed(a.a_failure()))
    await dispatcher.settle(await dispatcher.claim_one(), Completed(b"1"))
    await until_settled(dispatcher)
    events = (await events_after(dispatcher.engine.database, 1)).events
    assert [(event.kind, event.attempt) for event in events] == [
        ("task.started", 1), ("task.retrying", 1), ("task.started", 2), ("task.completed", 2),
    ]  # fmt: skip


async def test_a_lost_attempt_is_told_as_lost_and_retrying(dispatcher, clock):
    lease = await a.a_running_task(dispatcher)
    await clock.advance(seconds=lease.seconds)
    await dispatcher.reap_once()
    assert sorted(await kinds(dispatcher)) == ["task.lost", "task.retrying", "task.started"]


async def test_a_release_a_cancel_and_a_failure_are_told(dispatcher):
    await dispatcher.settle(await a.a_running_task(dispatcher), Released())
    await dispatcher.cancel((await dispatcher.claim_one()).task_id)
    await a.a_canceled_task(dispatcher)
    await a.a_failed_task(dispatcher)
    assert {"task.released", "task.canceled", "task.failed"} <= set(await kinds(dispatcher))


async def test_what_rolled_back_is_not_told(dispatcher):
    await dispatcher.enqueue(a.a_task())
    claimer = await dispatcher._claimer("first")
    async with dispatcher.engine.database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        assert await claimer.claim(session, 1, now=0.0)
        await transaction.rollback()
    assert await kinds(dispatcher) == []


async def test_another_tenants_events_are_not_shown(dispatcher):
    await a.a_completed_task(dispatcher)
    assert (await events_after(dispatcher.engine.database, 2)).events == []


async def test_nothing_is_shown_past_a_transaction_that_is_still_open(dispatcher):
    async with dispatcher.engine.database.transaction() as session:
        await session.fetch("select pg_current_xact_id()")
        await a.a_completed_task(dispatcher)
        assert (await events_after(dispatcher.engine.database, 1)).events == []
    assert await kinds(dispatcher) == ["task.started", "task.completed"]


async def test_resuming_beside_concurrent_writers_loses_and_repeats_nothing(dispatcher):
    async def write(worker):
        for _ in range(10):
            lease = await a.a_running_task(dispatcher, worker=worker)
            await dispatcher.settle(lease, Completed(b"1"))

    writers = asyncio.gather(*(write(f"worker-{number}") for number in range(4)))
    database, seen, cursor = dispatcher.engine.database, [], START
    while not writers.done():
        events, cursor = await read_on(database, cursor, limit=3)
        seen += events
        await asyncio.wait([writers], timeout=0.002)
    await until_settled(dispatcher)
    seen += (await read_on(database, cursor, limit=3))[0]
    assert len(seen) == 80 == len({(event.task_id, event.kind) for event in seen})
