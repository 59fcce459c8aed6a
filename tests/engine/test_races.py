"""Two actors on one row: whoever comes second judges the row as the first one left it."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import BLOCKED, eventually

from holdfast.core.tasks.outcome import Failed, Released
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.claim_named import claim_task
from holdfast.engine.lifecycle.tasks.exchange import exchange
from holdfast.engine.lifecycle.tasks.heartbeat import heartbeat
from holdfast.engine.lifecycle.tasks.reap import lose_workers_once
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.testing.factories import a_failure, a_running_task, a_task


async def blocked(engine, count=1):
    """Wait until that many statements of this database wait for a lock."""

    async def are_waiting():
        return await engine.database.fetchval(BLOCKED) >= count

    await eventually(are_waiting)


async def test_a_cancel_that_waited_for_a_claim_asks_the_new_holder(engine, harness):
    task = await harness.enqueue(a_task())
    identity = (await harness._claimer("first")).identity
    async with engine.database.transaction() as session:
        await claim_task(session, identity, int(task.task_id))
        canceling = asyncio.ensure_future(harness.cancel(task.task_id))
        await blocked(engine)
    assert await canceling == "canceling"
    assert (await harness.task(task.task_id)).cancel_at is not None


async def test_a_cancel_that_waited_for_a_retry_ends_the_task(engine, harness):
    lease = await a_running_task(harness)
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(lease.claimed, Failed(a_failure()))])
        canceling = asyncio.ensure_future(harness.cancel(lease.task_id))
        await blocked(engine)
    assert await canceling == "canceled"
    assert (await harness.task(lease.task_id)).state == "canceled"


async def test_a_stale_report_in_the_same_batch_does_not_speak_for_a_current_one(engine, harness, clock):
    """A worker that repeats a report whose answer was lost may add the next attempt of the same task."""
    first = await a_running_task(harness)
    await harness.settle(first, Failed(a_failure()))
    await clock.advance(seconds=60)
    await harness.reconcile_once()
    second = await harness.claim_task(first.task_id)
    reports = [report_of(first.claimed, Failed(a_failure())), report_of(second.claimed, Released())]
    async with engine.database.transaction() as session:
        settled = await settle(session, engine.catalog, reports)
    task = await harness.task(first.task_id)
    assert (task.state, task.retry_count, settled.refused) == ("queued", 1, [])


async def test_a_worker_shown_as_lost_is_back_with_its_next_beat(engine, harness, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=60)
    await harness.heartbeat(await a_running_task(harness, worker="other"))
    assert await lose_workers_once(engine.database, silent_seconds=30) == 1
    async with engine.database.session() as session:
        beat = await heartbeat(session, lease.worker_id, {}, lease_seconds=10)
    assert beat.worker_state == "active"


@pytest.mark.parametrize("claims", [0, 3])
async def test_a_batch_of_reports_is_refused_one_by_one(engine, harness, clock, claims):
    lease = await a_running_task(harness)
    await clock.advance(seconds=60)
    await harness.reap_once()
    claimer = await harness._claimer("first")
    async with engine.database.session() as session:
        done = await exchange(session, engine.catalog, claimer, [report_of(lease.claimed, Released())], claims, now=0.0)
    assert [refusal.task_id for refusal in done.settled.refused] == [lease.claimed.task_id]
