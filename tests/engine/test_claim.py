"""Claiming: one holder, a fresh lease, and a reason when it is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_diamond

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.engine.lifecycle.tasks.claim import HEADS_SECONDS_MAX, UNSEEN_MAX, Claimer, WorkerIdentity
from holdfast.errors import Conflict, NotFound
from holdfast.testing import factories as a


async def refusal(harness, task_id, **options) -> str:
    with pytest.raises(Conflict) as refused:
        await harness.claim_task(task_id, **{"worker": "second", **options})
    assert refused.value.code == "not_claimable"
    return refused.value.fields["reason"]


async def test_a_claim_starts_the_next_attempt_with_a_lease(harness):
    task = await harness.enqueue(a.a_task(input={"order": 7}))
    lease = await harness.claim_one()
    seen = await harness.task(task.task_id)
    assert (seen.state, seen.attempt, seen.worker_id) == (TaskState.RUNNING, 1, lease.worker_id)
    assert (seen.lease_expires_at - seen.started_at).total_seconds() == pytest.approx(lease.seconds)
    assert lease.claimed.input == b'{"order":7}'


async def test_a_claimed_task_is_an_open_attempt(harness):
    lease = await a.a_running_task(harness)
    (attempt,) = await harness.attempts(lease.task_id)
    assert (attempt.state, attempt.lease_token, attempt.ended_at) == (AttemptState.RUNNING, lease.token, None)


async def test_every_claim_has_a_token_of_its_own(harness):
    await harness.enqueue_many(a.a_task(), [{}] * 10)
    tokens = [{lease.token for lease in await harness.claim(5)} for _ in range(2)]
    assert [len(granted) for granted in tokens] == [1, 1] and not tokens[0] & tokens[1]


async def test_a_claim_takes_no_more_than_wanted(harness):
    await harness.enqueue_many(a.a_task(), [{}] * 10)
    assert len(await harness.claim(3)) == 3


async def test_claimers_at_once_never_share_a_task(harness):
    await harness.enqueue_many(a.a_task(), [{}] * 100)
    claims = await asyncio.gather(*(harness.claim(20, worker=f"worker-{number}") for number in range(8)))
    taken = [lease.task_id for claim in claims for lease in claim]
    assert len(taken) == len(set(taken)) == 100


async def test_a_lane_with_less_work_than_planned_leaves_no_slot_idle(harness):
    await harness.enqueue(a.a_task(action="shop.rare"))
    await harness.enqueue_many(a.a_task(action="shop.common"), [{}] * 20)
    assert len(await harness.claim(10)) == 10


async def test_a_running_task_is_refused_as_already_running(harness):
    lease = await a.a_running_task(harness)
    assert await refusal(harness, lease.task_id) == "already_running"


async def test_a_task_with_an_expired_lease_is_refused_until_it_is_reaped(harness, clock):
    lease = await a.a_running_task(harness)
    await clock.advance(seconds=lease.seconds)
    assert await refusal(harness, lease.task_id) == "lease_expired"


@pytest.mark.parametrize("stage", ["completed", "failed", "canceled"])
async def test_a_task_that_is_over_is_refused_with_its_end(harness, stage):
    task_id = await getattr(a, f"a_{stage}_task")(harness)
    assert await refusal(harness, task_id) == stage


async def test_a_delayed_task_is_refused_as_not_due(harness):
    task = await harness.enqueue(a.a_delayed_task(60))
    assert await refusal(harness, task.task_id) == "not_due"


async def test_a_retrying_task_is_refused_as_not_due(harness):
    assert await refusal(harness, await a.a_retrying_task(harness)) == "not_due"


async def test_a_task_of_a_paused_queue_is_refused_as_paused(harness):
    task = await harness.enqueue(a.a_task())
    await harness.pause()
    assert await refusal(harness, task.task_id) == "paused"


async def test_a_task_of_a_full_queue_is_refused_as_at_limit(harness):
    await a.a_running_task(harness)
    await harness.limit(max_running=1)
    task = await harness.enqueue(a.a_task())
    assert await refusal(harness, task.task_id) == "at_limit"


async def test_a_running_task_of_a_full_queue_is_refused_as_already_running(harness):
    lease = await a.a_running_task(harness)
    await harness.limit(max_running=1)
    assert await refusal(harness, lease.task_id) == "already_running"


async def test_a_node_without_a_task_is_refused_with_where_it_stands(harness):
    run = int(await harness.runs.start(a_diamond()))
    assert await refusal(harness, str(run + 2)) == "blocked"
    await harness.settle(await harness.claim_task(str(run + 1)), Completed(b"1"))
    await harness.settle(await harness.claim_task(str(run + 2)), Failed(a.a_failure()))
    await harness.settle(await harness.claim_task(str(run + 3)), Completed(b"1"))
    assert await refusal(harness, str(run + 4)) == "upstream_failed"
    assert await refusal(harness, str(run + 1)) == "completed"
    with pytest.raises(NotFound):
        await harness.claim_task(str(run))


async def test_a_reserved_task_is_refused_as_reserved(harness):
    task = await harness.enqueue(a.a_task())
    await harness.reserve(task.task_id)
    assert await refusal(harness, task.task_id) == "reserved"


async def test_an_unknown_task_is_not_found(harness):
    await a.a_running_task(harness)
    with pytest.raises(NotFound):
        await harness.claim_task("999")


@pytest.mark.parametrize("end", ["retire", "drain"])
async def test_a_worker_that_leaves_gets_no_work(harness, end):
    task = await harness.enqueue(a.a_task())
    await getattr(harness, end)("second")
    assert await harness.claim(1, worker="second") == []
    assert await refusal(harness, task.task_id) == "worker_not_active"


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(harness):
    await harness.enqueue(a.a_task())
    await harness.pause()
    assert await harness.claim(1) == []
    await harness.resume()
    assert len(await harness.claim(1)) == 1


async def test_pausing_stops_nothing_that_runs(harness):
    lease = await a.a_running_task(harness)
    await harness.pause()
    await harness.settle(lease, Completed(b"1"))
    assert (await harness.task(lease.task_id)).state is TaskState.COMPLETED


async def test_a_second_pause_updates_who_and_why(harness):
    await harness.enqueue(a.a_task())
    assert await harness.pause(actor="ada", reason="bank is down")
    assert await harness.pause(actor="bob", reason="later")
    row = await harness.engine.database.fetchrow("select paused_by, paused_reason from holdfast.queue")
    assert tuple(row) == ("bob", "later")


async def test_a_retried_task_keeps_its_place_before_younger_ones(harness):
    lease = await a.a_running_task(harness, base_backoff_secs=0)
    await harness.enqueue(a.a_task())
    await harness.settle(lease, Failed(a.a_failure()))
    assert (await harness.claim_one()).task_id == lease.task_id


async def expecting(harness, *priorities: int) -> tuple[Claimer, list[list[int]]]:
    """A claimer that saw one task of priority 5, and what it claims after a wake-up for tasks of these priorities."""
    claimer = Claimer(
        WorkerIdentity(
            worker_id=await harness.worker_id(), actions=[a.a_task().action], queues=None, lease_seconds=10.0
        )
    )
    await harness.enqueue(a.a_task(priority=5))
    async with harness.engine.database.transaction() as session:
        (seen,) = await claimer.claim(session, 10, now=0.0)
        ids = [int((await harness.enqueue(a.a_task(priority=one))).task_id) for one in priorities]
        claimer.expect([seen.lane_id], now=0.0)
        taken = []
        while claims := await claimer.claim(session, 10, now=0.0):
            taken.append([ids.index(one.task_id) for one in claims])
    return claimer, taken


async def test_a_lane_named_by_a_wake_up_is_tried_unseen_and_the_rest_found_after(harness):
    claimer, taken = await expecting(harness, 5, 2)
    assert taken == [[0], [1]] and not claimer.may_have_more


async def test_a_wake_up_with_another_priority_than_usual_only_costs_the_look(harness):
    _, taken = await expecting(harness, 2)
    assert taken == [[0]]


async def until_seen(harness, *, want: int, new: int, seconds: float) -> int:
    """How many claims a worker makes, with a wake-up for one lane before each, until it takes the task of another lane.

    `new` tasks of the first lane come before each claim, and `seconds` pass.
    """
    told, other = a.a_task(action="shop.told"), a.a_task(action="shop.other", priority=0)
    await harness.enqueue_many(told, [{}] * 100)
    claimer = await harness._claimer("first")
    async with harness.engine.database.session() as session:
        lane_id = (await claimer.claim(session, 100, now=0.0))[0].lane_id
        harness.know(other.action)
        waiting = int((await harness.enqueue(other)).task_id)
        for number in range(1, 100):
            await harness.enqueue_many(told, [{}] * new)
            claimer.expect([lane_id], now=number * seconds)
            claimed = await claimer.claim(session, want, now=number * seconds)
            if waiting in [one.task_id for one in claimed]:
                return number
    raise AssertionError("It was never seen.")


@pytest.mark.parametrize("seconds", [0.01, 1.0])
async def test_who_hears_of_one_lane_all_the_time_and_has_plenty_looks_at_the_others_in_time(harness, seconds):
    assert await until_seen(harness, want=2, new=4, seconds=seconds) * seconds <= HEADS_SECONDS_MAX + 2 * seconds


@pytest.mark.parametrize("seconds", [0.01, 1.0])
async def test_who_hears_of_one_lane_all_the_time_and_has_room_looks_at_the_others_too(harness, seconds):
    assert await until_seen(harness, want=5, new=1, seconds=seconds) <= UNSEEN_MAX + HEADS_SECONDS_MAX / seconds


async def test_wake_ups_for_two_lanes_are_both_tried(harness):
    claimer = await harness._claimer("first")
    tasks = [a.a_task(action=f"shop.{name}") for name in "ab"]
    async with harness.engine.database.session() as session:
        for task in tasks:
            await harness.enqueue(task)
        lanes = [one.lane_id for one in await claimer.claim(session, 10, now=0.0)]
        assert await claimer.claim(session, 10, now=1.0) == []
        for task in tasks:
            await harness.enqueue(task)
        for lane_id in lanes:
            claimer.expect([lane_id], now=2.0)
        claimed = await claimer.claim_known(session, 10, now=2.0)
    assert sorted(one.lane_id for one in claimed) == sorted(lanes)
