"""Cancelling: at once where nothing runs, by request where something does, by force at the end of the grace."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Released
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.engine.lifecycle.tasks import cancel as verb
from holdfast.errors import LeaseLost
from holdfast.testing import factories as a


async def test_a_queued_task_is_canceled_at_once(dispatcher):
    task = await dispatcher.enqueue(a.a_task())
    assert await dispatcher.cancel(task.task_id) == "canceled"
    seen = await dispatcher.task(task.task_id)
    assert (seen.state, seen.attempt) == (TaskState.CANCELED, 0)
    assert await dispatcher.claim(1) == []


async def test_a_delayed_task_is_canceled_at_once(dispatcher, clock):
    task = await dispatcher.enqueue(a.a_delayed_task(60))
    await dispatcher.cancel(task.task_id)
    await clock.advance(seconds=60)
    assert await dispatcher.reconcile_once() == 0


async def test_a_waiting_retry_is_canceled_at_once(dispatcher):
    task_id = await a.a_retrying_task(dispatcher)
    assert await dispatcher.cancel(task_id) == "canceled"
    assert (await dispatcher.task(task_id)).state is TaskState.CANCELED


async def test_a_canceled_task_says_who_and_why(dispatcher):
    task = await dispatcher.enqueue(a.a_task())
    await dispatcher.cancel(task.task_id, actor="ada", reason="ordered twice")
    row = await dispatcher.engine.database.fetchrow("select actor, reason from holdfast.ended")
    assert tuple(row) == ("ada", "ordered twice")


async def test_a_running_task_is_asked_to_stop(dispatcher):
    lease = await a.a_running_task(dispatcher)
    assert await dispatcher.cancel(lease.task_id) == "canceling"
    seen = await dispatcher.task(lease.task_id)
    assert seen.state is TaskState.RUNNING and seen.cancel_at is not None
    assert (await dispatcher.heartbeat(lease)).canceled == {lease.claimed.task_id}


async def test_a_worker_that_stops_when_asked_ends_the_task_as_canceled(dispatcher):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.cancel(lease.task_id, actor="ada", reason="ordered twice")
    await dispatcher.settle(lease, Canceled())
    row = await dispatcher.engine.database.fetchrow("select state::text, actor, reason from holdfast.ended")
    assert tuple(row) == ("x", "ada", "ordered twice")
    assert [attempt.state for attempt in await dispatcher.attempts(lease.task_id)] == [AttemptState.CANCELED]


@pytest.mark.parametrize(
    "end", [Failed(a.a_failure()), Lost(a.a_failure()), Released()], ids=lambda end: type(end).__name__
)
async def test_a_requested_cancel_wins_over_any_retry(dispatcher, end):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.cancel(lease.task_id)
    await dispatcher.settle(lease, end)
    assert (await dispatcher.task(lease.task_id)).state is TaskState.CANCELED


async def test_work_that_completes_after_the_request_is_completed(dispatcher):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.cancel(lease.task_id)
    await dispatcher.settle(lease, Completed(b"1"))
    assert (await dispatcher.task(lease.task_id)).state is TaskState.COMPLETED


async def test_within_its_grace_a_canceled_attempt_is_left_alone(dispatcher, clock):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.cancel(lease.task_id, grace_seconds=5)
    await clock.advance(seconds=4)
    assert await dispatcher.reap_once() == 0


async def test_past_its_grace_a_canceled_attempt_is_ended_by_force_though_it_beats(dispatcher, clock):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.cancel(lease.task_id, grace_seconds=5)
    await clock.advance(seconds=5)
    await dispatcher.heartbeat(lease)
    assert await dispatcher.reap_once() == 1
    assert (await dispatcher.task(lease.task_id)).state is TaskState.CANCELED
    with pytest.raises(LeaseLost, match="canceled"):
        await dispatcher.settle(lease, Completed(b"1"))


async def test_a_second_cancel_never_gives_more_time(dispatcher):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.cancel(lease.task_id, grace_seconds=5)
    first = (await dispatcher.task(lease.task_id)).cancel_at
    await dispatcher.cancel(lease.task_id, grace_seconds=60)
    assert (await dispatcher.task(lease.task_id)).cancel_at == first


@pytest.mark.parametrize("stage", ["completed", "failed", "canceled"])
async def test_a_task_that_is_over_stays_as_it_is(dispatcher, stage):
    task_id = await getattr(a, f"a_{stage}_task")(dispatcher)
    before = await dispatcher.task(task_id)
    assert await dispatcher.cancel(task_id) == "over"
    assert await dispatcher.task(task_id) == before


async def test_another_tenants_task_is_not_canceled(dispatcher):
    task = await dispatcher.enqueue(a.a_task())
    done = await verb.cancel(
        dispatcher.engine.database,
        dispatcher.engine.catalog,
        2,
        [int(task.task_id)],
        grace_seconds=1,
        reason="",
        actor="eve",
    )
    assert done.states == {}


async def test_a_cancel_racing_a_completion_leaves_one_winner(dispatcher):
    leases = [await a.a_running_task(dispatcher) for _ in range(10)]
    await asyncio.gather(
        *(dispatcher.settle(lease, Completed(b"1")) for lease in leases),
        *(dispatcher.cancel(lease.task_id) for lease in leases),
    )
    states = {(await dispatcher.task(lease.task_id)).state for lease in leases}
    assert states == {TaskState.COMPLETED}


async def test_a_cancel_racing_a_claim_loses_no_task(dispatcher):
    tasks = await dispatcher.enqueue_many(a.a_task(), [{}] * 20)
    claimed, *canceled = await asyncio.gather(
        dispatcher.claim(20), *(dispatcher.cancel(task.task_id) for task in tasks)
    )
    running = {lease.task_id for lease in claimed}
    told = {task.task_id: state for task, state in zip(tasks, canceled, strict=True)}
    assert {task_id for task_id, state in told.items() if state == "canceling"} <= running
    for task in tasks:
        state = (await dispatcher.task(task.task_id)).state
        assert state is (TaskState.RUNNING if task.task_id in running else TaskState.CANCELED)


async def test_a_cancel_waits_for_no_transaction_of_the_users_own(dispatcher, engine):
    """It holds others by then, and batched heartbeats would wait for those."""
    first, second = [await a.a_running_task(dispatcher) for _ in range(2)]
    async with engine.database.transaction() as session:
        await session.fetch("select holdfast.assert_lease($1, $2)", second.task_id, second.token)
        done = await asyncio.wait_for(dispatcher.cancel(second.task_id), 5)
        assert done == "canceling" and await dispatcher.cancel(first.task_id) == "canceling"
    for lease in (first, second):
        await dispatcher.settle(lease, Canceled("asked"))
