"""The reaper ends what nobody can be running, and decides by the one rule."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_diamond

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks.reap import reap_once
from holdfast.engine.maintenance.loops import Loops
from holdfast.errors import LeaseLost
from holdfast.server.worker_api.remote_workers import RemoteWorkers
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.store.statements import sql
from holdfast.testing.factories import a_delayed_task, a_running_task, a_task


async def lose(harness, clock, lease):
    """Let a lease run out and be reaped."""
    await clock.advance(seconds=lease.seconds)
    assert await harness.reap_once() == 1


async def test_a_lost_worker_costs_one_loss_and_cannot_settle_late(harness, clock):
    task = await harness.enqueue(a_task(max_losses=2))
    lease = await harness.claim_one(worker="first")

    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()

    seen = await harness.task(task.task_id)
    assert (seen.state, seen.loss_count) == (TaskState.QUEUED, 1)
    with pytest.raises(LeaseLost, match="queued"):
        await harness.settle(lease, Completed(b"null"))


async def test_a_valid_lease_is_left_alone(harness, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=lease.seconds - 1)
    assert await harness.reap_once() == 0


async def test_a_lost_attempt_says_whose_lease_expired(harness, clock):
    lease = await a_running_task(harness, worker="bakery")
    await lose(harness, clock, lease)
    (attempt,) = await harness.attempts(lease.task_id)
    assert (attempt.state, attempt.reason) == (AttemptState.LOST, "lost")
    assert "bakery" in attempt.message


async def test_a_first_loss_is_retried_at_once_and_the_second_with_backoff(harness, clock):
    await lose(harness, clock, await a_running_task(harness, max_losses=2))
    lease = await harness.claim_one(worker="second")
    await lose(harness, clock, lease)
    first, second = await harness.attempts(lease.task_id)
    assert (first.retry_at - first.ended_at).total_seconds() == 0
    assert (second.retry_at - second.ended_at).total_seconds() == pytest.approx(1)


async def test_the_loss_budget_ends_the_task(harness, clock):
    lease = await a_running_task(harness, max_losses=0)
    await lose(harness, clock, lease)
    seen = await harness.task(lease.task_id)
    assert (seen.state, seen.next_retry_at) == (TaskState.FAILED, None)
    assert (await harness.attempts(lease.task_id))[0].reason == "losses_exhausted"


async def test_past_its_deadline_a_silent_attempt_timed_out(harness, clock):
    lease = await a_running_task(harness, timeout_seconds=5)
    await lose(harness, clock, lease)
    seen = await harness.task(lease.task_id)
    assert (await harness.attempts(lease.task_id))[0].state is AttemptState.TIMED_OUT
    assert (seen.retry_count, seen.loss_count) == (1, 0)


async def test_far_past_its_deadline_an_attempt_is_ended_though_its_worker_beats(harness, clock):
    lease = await a_running_task(harness, timeout_seconds=5)
    for _ in range(3):
        assert await harness.reap_once(overdue_seconds=20) == 0
        await clock.advance(seconds=lease.seconds - 1)
        await harness.heartbeat(lease)
    assert await harness.reap_once(overdue_seconds=20) == 1
    (attempt,) = await harness.attempts(lease.task_id)
    assert (attempt.state, "did not end it" in attempt.message) == (AttemptState.TIMED_OUT, True)
    assert (await harness.heartbeat(lease)).lost == {lease.claimed.task_id}


async def test_before_its_deadline_a_silent_attempt_is_lost(harness, clock):
    lease = await a_running_task(harness, timeout_seconds=3600)
    await lose(harness, clock, lease)
    assert (await harness.attempts(lease.task_id))[0].state is AttemptState.LOST


async def test_the_work_of_a_process_known_dead_is_lost_at_once(harness):
    lease = await a_running_task(harness)
    await harness.retire("first")
    assert await harness.reap_once() == 1
    assert (await harness.task(lease.task_id)).state is TaskState.QUEUED


async def test_one_pass_is_bounded_and_the_next_goes_on(harness, clock):
    await harness.enqueue_many(a_task(), [{}] * 25)
    leases = await harness.claim(25)
    await clock.advance(seconds=leases[0].seconds)
    engine = harness.engine
    passes = [(await reap_once(engine.database, engine.catalog, limit=10)).count for _ in range(4)]
    assert passes == [10, 10, 5, 0]


async def test_rows_that_need_nothing_do_not_hold_up_those_that_do(harness, clock):
    await harness.enqueue_many(a_delayed_task(3600), [{}] * 20)
    lost = await a_running_task(harness)
    await clock.advance(seconds=lost.seconds)
    await harness.enqueue_many(a_task(), [{}] * 20)
    await harness.claim(20, worker="second")
    engine = harness.engine
    assert (await reap_once(engine.database, engine.catalog, limit=5)).count == 1


UNREADABLE = """update holdfast.policy set content = jsonb_set(content, '{rules}', '"later"') where max_retries = 7"""
READABLE = """update holdfast.policy set content = jsonb_set(content, '{rules}', '[]') where max_retries = 7"""
REFUSED = "alter table holdfast.failure add constraint refused check (task_id <> %s)"
ACCEPTED = "alter table holdfast.failure drop constraint refused"


@pytest.mark.parametrize(("damage", "mend"), [(UNREADABLE, READABLE), (REFUSED, ACCEPTED)], ids=["policy", "row"])
async def test_a_lease_that_cannot_be_settled_holds_up_no_other(harness, engine, clock, caplog, damage, mend):
    odd = await a_running_task(harness, max_retries=7)
    sound = [await a_running_task(harness) for _ in range(3)]
    await clock.advance(seconds=odd.seconds)
    await engine.database.fetch(damage.replace("%s", odd.task_id))
    async with Engine(engine.database.url, engine.settings) as elsewhere:
        loops = Loops(elsewhere)
        await loops.reap()
        assert [(await harness.task(one.task_id)).state for one in sound] == [TaskState.QUEUED] * 3
        assert f"attempt 1 of task {odd.task_id} is over and cannot be settled" in caplog.text
        caplog.clear()
        await loops.reap()
        assert not caplog.text, "it is left alone for a while"
    await engine.database.fetch(mend)
    assert await harness.reap_once() == 1


async def test_eight_reapers_at_once_equal_one(harness, clock):
    await harness.enqueue_many(a_task(), [{}] * 60)
    leases = await harness.claim(60)
    await clock.advance(seconds=leases[0].seconds)
    counts = await asyncio.gather(*(harness.reap_once() for _ in range(8)))
    counts.append(await harness.reap_once())
    losses = await harness.engine.database.fetch("select losses from holdfast.live")
    assert sum(counts) == 60 and [row[0] for row in losses] == [1] * 60


async def test_eight_reconcilers_at_once_equal_one(harness, clock):
    await harness.enqueue_many(a_delayed_task(60), [{}] * 60)
    await clock.advance(seconds=60)
    counts = await asyncio.gather(*(harness.reconcile_once() for _ in range(8)))
    counts.append(await harness.reconcile_once())
    assert sum(counts) == 60


async def test_a_reaper_racing_a_completion_leaves_one_winner(harness, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=lease.seconds)
    answers = await asyncio.gather(harness.settle(lease, Completed(b"1")), harness.reap_once(), return_exceptions=True)
    is_accepted = answers[0] is None
    assert is_accepted or isinstance(answers[0], LeaseLost)
    state = (await harness.task(lease.task_id)).state
    assert state is (TaskState.COMPLETED if is_accepted else TaskState.QUEUED)


async def test_a_clock_set_back_delays_and_grants_nothing_twice(harness, clock):
    lease = await a_running_task(harness)
    await clock.step(-3600)
    assert await harness.reap_once() == 0
    assert await harness.claim(1, worker="second") == []
    await harness.settle(lease, Completed(b"1"))


async def test_a_clock_set_forward_expires_everything_and_the_fence_still_holds(harness, clock):
    leases = [await a_running_task(harness) for _ in range(5)]
    await clock.step(86_400)
    assert await harness.reap_once() == 5
    for lease in leases:
        with pytest.raises(LeaseLost):
            await harness.settle(lease, Completed(b"1"))


async def test_a_run_that_is_held_delays_neither_other_runs_nor_plain_tasks(harness, engine, clock):
    harness.runs.policy = RetryPolicy(max_retries=0, max_losses=0)
    held, free = await harness.runs.start(a_diamond()), await harness.runs.start(a_diamond())
    nodes = await harness.claim(10)
    plain = await a_running_task(harness)
    await clock.advance(seconds=plain.seconds)
    loops = Loops(engine)
    async with engine.database.transaction() as holder:
        await holder.fetch(sql("lock_runs"), [int(held)])
        await loops.reap()
        assert (await harness.task(plain.task_id)).state is TaskState.QUEUED
        states = {one.claimed.run_id: (await harness.task(one.task_id)).state for one in nodes}
        assert states == {int(held): TaskState.RUNNING, int(free): TaskState.FAILED}
        # It is left out for a while: no pass waits for it again and again.
        assert loops._busy == {one.claimed.task_id for one in nodes if one.claimed.run_id == int(held)}
    assert await harness.reap_once() == 1


class TestAfterTheClockWasSetForward:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(worker=WorkerSettings(lease_seconds=2.0, heartbeat_seconds=0.5))

    async def test_nothing_is_reaped_for_one_lease(self, harness, engine, clock, eventually, caplog):
        running = await a_running_task(harness)
        late = await a_running_task(harness, timeout_seconds=5)
        dead = await a_running_task(harness, worker="dead")
        loops = Loops(engine)
        loops.watch_clock()
        await loops.reap()
        await clock.step(3600)
        await harness.retire("dead")
        for _ in range(3):
            await loops.reap()
        states = [(await harness.task(one.task_id)).state for one in (running, late, dead)]
        assert states == [TaskState.RUNNING, TaskState.RUNNING, TaskState.QUEUED]
        assert "the database's clock was set forward" in caplog.text

        async def is_reaped():
            await loops.reap()
            return (await harness.task(running.task_id)).state is TaskState.QUEUED

        await eventually(is_reaped)

    async def test_a_process_that_buries_a_worker_reaps_nothing_else(self, harness, engine, clock):
        running, dead = await a_running_task(harness), await a_running_task(harness, worker="dead")
        await clock.step(3600)
        await RemoteWorkers(engine).retire(dead.worker_id)
        states = [(await harness.task(one.task_id)).state for one in (running, dead)]
        assert states == [TaskState.RUNNING, TaskState.QUEUED]
