"""Cancelling: at once where nothing runs, by request where something does, by force at the end of the grace."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Released
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.engine.lifecycle.tasks import cancel as verb
from holdfast.errors import LeaseLost
from holdfast.testing import factories as a


async def test_a_queued_task_is_canceled_at_once(harness):
    task = await harness.enqueue(a.a_task())
    assert await harness.cancel(task.task_id) == "canceled"
    seen = await harness.task(task.task_id)
    assert (seen.state, seen.attempt) == (TaskState.CANCELED, 0)
    assert await harness.claim(1) == []


async def test_a_delayed_task_is_canceled_at_once(harness, clock):
    task = await harness.enqueue(a.a_delayed_task(60))
    await harness.cancel(task.task_id)
    await clock.advance(seconds=60)
    assert await harness.reconcile_once() == 0


async def test_a_waiting_retry_is_canceled_at_once(harness):
    task_id = await a.a_retrying_task(harness)
    assert await harness.cancel(task_id) == "canceled"
    assert (await harness.task(task_id)).state is TaskState.CANCELED


async def test_a_canceled_task_says_who_and_why(harness):
    task = await harness.enqueue(a.a_task())
    await harness.cancel(task.task_id, actor="ada", reason="ordered twice")
    row = await harness.engine.database.fetchrow("select actor, reason from holdfast.ended")
    assert tuple(row) == ("ada", "ordered twice")


async def test_a_running_task_is_asked_to_stop(harness):
    lease = await a.a_running_task(harness)
    assert await harness.cancel(lease.task_id) == "canceling"
    seen = await harness.task(lease.task_id)
    assert seen.state is TaskState.RUNNING and seen.cancel_at is not None
    assert (await harness.heartbeat(lease)).canceled == {lease.claimed.task_id}


async def test_a_worker_that_stops_when_asked_ends_the_task_as_canceled(harness):
    lease = await a.a_running_task(harness)
    await harness.cancel(lease.task_id, actor="ada", reason="ordered twice")
    await harness.settle(lease, Canceled())
    row = await harness.engine.database.fetchrow("select state::text, actor, reason from holdfast.ended")
    assert tuple(row) == ("x", "ada", "ordered twice")
    assert [attempt.state for attempt in await harness.attempts(lease.task_id)] == [AttemptState.CANCELED]


@pytest.mark.parametrize(
    "end", [Failed(a.a_failure()), Lost(a.a_failure()), Released()], ids=lambda end: type(end).__name__
)
async def test_a_requested_cancel_wins_over_any_retry(harness, end):
    lease = await a.a_running_task(harness)
    await harness.cancel(lease.task_id)
    await harness.settle(lease, end)
    assert (await harness.task(lease.task_id)).state is TaskState.CANCELED


async def test_work_that_completes_after_the_request_is_completed(harness):
    lease = await a.a_running_task(harness)
    await harness.cancel(lease.task_id)
    await harness.settle(lease, Completed(b"1"))
    assert (await harness.task(lease.task_id)).state is TaskState.COMPLETED


async def test_within_its_grace_a_canceled_attempt_is_left_alone(harness, clock):
    lease = await a.a_running_task(harness)
    await harness.cancel(lease.task_id, grace_seconds=5)
    await clock.advance(seconds=4)
    assert await harness.reap_once() == 0


async def test_past_its_grace_a_canceled_attempt_is_ended_by_force_though_it_beats(harness, clock):
    lease = await a.a_running_task(harness)
    await harness.cancel(lease.task_id, grace_seconds=5)
    await clock.advance(seconds=5)
    await harness.heartbeat(lease)
    assert await harness.reap_once() == 1
    assert (await harness.task(lease.task_id)).state is TaskState.CANCELED
    with pytest.raises(LeaseLost, match="canceled"):
        await harness.settle(lease, Completed(b"1"))


async def test_a_second_cancel_never_gives_more_time(harness):
    lease = await a.a_running_task(harness)
    await harness.cancel(lease.task_id, grace_seconds=5)
    first = (await harness.task(lease.task_id)).cancel_at
    await harness.cancel(lease.task_id, grace_seconds=60)
    assert (await harness.task(lease.task_id)).cancel_at == first


@pytest.mark.parametrize("stage", ["completed", "failed", "canceled"])
async def test_a_task_that_is_over_stays_as_it_is(harness, stage):
    task_id = await getattr(a, f"a_{stage}_task")(harness)
    before = await harness.task(task_id)
    assert await harness.cancel(task_id) == "over"
    assert await harness.task(task_id) == before


async def test_another_tenants_task_is_not_canceled(harness):
    task = await harness.enqueue(a.a_task())
    done = await verb.cancel(
        harness.engine.database,
        harness.engine.catalog,
        2,
        [int(task.task_id)],
        grace_seconds=1,
        reason="",
        actor="eve",
    )
    assert done.states == {}


async def test_a_cancel_racing_a_completion_leaves_one_winner(harness):
    leases = [await a.a_running_task(harness) for _ in range(10)]
    await asyncio.gather(
        *(harness.settle(lease, Completed(b"1")) for lease in leases),
        *(harness.cancel(lease.task_id) for lease in leases),
    )
    states = {(await harness.task(lease.task_id)).state for lease in leases}
    assert states == {TaskState.COMPLETED}


async def test_a_cancel_racing_a_claim_loses_no_task(harness):
    tasks = await harness.enqueue_many(a.a_task(), [{}] * 20)
    claimed, *canceled = await asyncio.gather(harness.claim(20), *(harness.cancel(task.task_id) for task in tasks))
    running = {lease.task_id for lease in claimed}
    told = {task.task_id: state for task, state in zip(tasks, canceled, strict=True)}
    assert {task_id for task_id, state in told.items() if state == "canceling"} <= running
    for task in tasks:
        state = (await harness.task(task.task_id)).state
        assert state is (TaskState.RUNNING if task.task_id in running else TaskState.CANCELED)


async def test_a_cancel_waits_for_no_transaction_of_the_users_own(harness, engine):
    """It holds others by then, and batched heartbeats would wait for those."""
    first, second = [await a.a_running_task(harness) for _ in range(2)]
    async with engine.database.transaction() as session:
        await session.fetch("select holdfast.assert_lease($1, $2)", second.task_id, second.token)
        done = await asyncio.wait_for(harness.cancel(second.task_id), 5)
        assert done == "canceling" and await harness.cancel(first.task_id) == "canceling"
    for lease in (first, second):
        await harness.settle(lease, Canceled("asked"))
