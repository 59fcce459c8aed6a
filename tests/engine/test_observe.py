"""Events tell what happened, and a reader that resumes misses nothing and sees nothing twice."""

from __future__ import annotations

import asyncio

from holdfast.core.tasks.outcome import Completed, Failed, Released
from holdfast.engine.queries.events import START, events_after
from holdfast.testing import factories as a

SETTLED = "select coalesce(max(xid) < pg_snapshot_xmin(pg_current_snapshot()), true) from holdfast.event"


async def until_settled(harness):
    """Wait for transactions of other tests on the same server: readers stop at the oldest open one of all."""
    while not await harness.engine.database.fetchval(SETTLED):
        continue


async def kinds(harness) -> list[str]:
    await until_settled(harness)
    return [event.kind for event in (await events_after(harness.engine.database, 1)).events]


async def read_on(database, cursor, *, limit):
    """Everything from a cursor on, a few batches at a time."""
    found = []
    while events := (await events_after(database, 1, cursor, limit=limit)).events:
        found += events
        cursor = events[-1].cursor
    return found, cursor


async def test_a_completed_task_was_started_and_completed(harness):
    await a.a_completed_task(harness)
    assert await kinds(harness) == ["task.started", "task.completed"]


async def test_a_retried_task_tells_each_attempt(harness):
    lease = await a.a_running_task(harness, base_backoff_secs=0)
    await harness.settle(lease, Failed(a.a_failure()))
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    await until_settled(harness)
    events = (await events_after(harness.engine.database, 1)).events
    assert [(event.kind, event.attempt) for event in events] == [
        ("task.started", 1), ("task.retrying", 1), ("task.started", 2), ("task.completed", 2),
    ]  # fmt: skip


async def test_a_lost_attempt_is_told_as_lost_and_retrying(harness, clock):
    lease = await a.a_running_task(harness)
    await clock.advance(seconds=lease.seconds)
    await harness.reap_once()
    assert sorted(await kinds(harness)) == ["task.lost", "task.retrying", "task.started"]


async def test_a_release_a_cancel_and_a_failure_are_told(harness):
    await harness.settle(await a.a_running_task(harness), Released())
    await harness.cancel((await harness.claim_one()).task_id)
    await a.a_canceled_task(harness)
    await a.a_failed_task(harness)
    assert {"task.released", "task.canceled", "task.failed"} <= set(await kinds(harness))


async def test_what_rolled_back_is_not_told(harness):
    await harness.enqueue(a.a_task())
    claimer = await harness._claimer("first")
    async with harness.engine.database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        assert await claimer.claim(session, 1, now=0.0)
        await transaction.rollback()
    assert await kinds(harness) == []


async def test_another_tenants_events_are_not_shown(harness):
    await a.a_completed_task(harness)
    assert (await events_after(harness.engine.database, 2)).events == []


async def test_nothing_is_shown_past_a_transaction_that_is_still_open(harness):
    async with harness.engine.database.transaction() as session:
        await session.fetch("select pg_current_xact_id()")
        await a.a_completed_task(harness)
        assert (await events_after(harness.engine.database, 1)).events == []
    assert await kinds(harness) == ["task.started", "task.completed"]


async def test_resuming_beside_concurrent_writers_loses_and_repeats_nothing(harness):
    async def write(worker):
        for _ in range(10):
            lease = await a.a_running_task(harness, worker=worker)
            await harness.settle(lease, Completed(b"1"))

    writers = asyncio.gather(*(write(f"worker-{number}") for number in range(4)))
    database, seen, cursor = harness.engine.database, [], START
    while not writers.done():
        events, cursor = await read_on(database, cursor, limit=3)
        seen += events
        await asyncio.wait([writers], timeout=0.002)
    await until_settled(harness)
    seen += (await read_on(database, cursor, limit=3))[0]
    assert len(seen) == 80 == len({(event.task_id, event.kind) for event in seen})
