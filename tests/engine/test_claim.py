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


async def refusal(dispatcher, task_id, **options) -> str:
    with pytest.raises(Conflict) as refused:
        await dispatcher.claim_task(task_id, **{"worker": "second", **options})
    assert refused.value.code == "not_claimable"
    return refused.value.fields["reason"]


async def test_a_claim_starts_the_next_attempt_with_a_lease(dispatcher):
    task = await dispatcher.enqueue(a.a_task(input={"order": 7}))
    lease = await dispatcher.claim_one()
    seen = await dispatcher.task(task.task_id)
    assert (seen.state, seen.attempt, seen.worker_id) == (TaskState.RUNNING, 1, lease.worker_id)
    assert (seen.lease_expires_at - seen.started_at).total_seconds() == pytest.approx(lease.seconds)
    assert lease.claimed.input == b'{"order":7}'


async def test_a_claimed_task_is_an_open_attempt(dispatcher):
    lease = await a.a_running_task(dispatcher)
    (attempt,) = await dispatcher.attempts(lease.task_id)
    assert (attempt.state, attempt.lease_token, attempt.ended_at) == (AttemptState.RUNNING, lease.token, None)


async def test_every_claim_has_a_token_of_its_own(dispatcher):
    await dispatcher.enqueue_many(a.a_task(), [{}] * 10)
    tokens = [{lease.token for lease in await dispatcher.claim(5)} for _ in range(2)]
    assert [len(granted) for granted in tokens] == [1, 1] and not tokens[0] & tokens[1]


async def test_a_claim_takes_no_more_than_wanted(dispatcher):
    await dispatcher.enqueue_many(a.a_task(), [{}] * 10)
    assert len(await dispatcher.claim(3)) == 3


async def test_claimers_at_once_never_share_a_task(dispatcher):
    await dispatcher.enqueue_many(a.a_task(), [{}] * 100)
    claims = await asyncio.gather(*(dispatcher.claim(20, worker=f"worker-{number}") for number in range(8)))
    taken = [lease.task_id for claim in claims for lease in claim]
    assert len(taken) == len(set(taken)) == 100


async def test_a_lane_with_less_work_than_planned_leaves_no_slot_idle(dispatcher):
    await dispatcher.enqueue(a.a_task(action="shop.rare"))
    await dispatcher.enqueue_many(a.a_task(action="shop.common"), [{}] * 20)
    assert len(await dispatcher.claim(10)) == 10


async def test_a_running_task_is_refused_as_already_running(dispatcher):
    lease = await a.a_running_task(dispatcher)
    assert await refusal(dispatcher, lease.task_id) == "already_running"


async def test_a_task_with_an_expired_lease_is_refused_until_it_is_reaped(dispatcher, clock):
    lease = await a.a_running_task(dispatcher)
    await clock.advance(seconds=lease.seconds)
    assert await refusal(dispatcher, lease.task_id) == "lease_expired"


@pytest.mark.parametrize("stage", ["completed", "failed", "canceled"])
async def test_a_task_that_is_over_is_refused_with_its_end(dispatcher, stage):
    task_id = await getattr(a, f"a_{stage}_task")(dispatcher)
    assert await refusal(dispatcher, task_id) == stage


async def test_a_delayed_task_is_refused_as_not_due(dispatcher):
    task = await dispatcher.enqueue(a.a_delayed_task(60))
    assert await refusal(dispatcher, task.task_id) == "not_due"


async def test_a_retrying_task_is_refused_as_not_due(dispatcher):
    assert await refusal(dispatcher, await a.a_retrying_task(dispatcher)) == "not_due"


async def test_a_task_of_a_paused_queue_is_refused_as_paused(dispatcher):
    task = await dispatcher.enqueue(a.a_task())
    await dispatcher.pause()
    assert await refusal(dispatcher, task.task_id) == "paused"


async def test_a_task_of_a_full_queue_is_refused_as_at_limit(dispatcher):
    await a.a_running_task(dispatcher)
    await dispatcher.limit(max_running=1)
    task = await dispatcher.enqueue(a.a_task())
    assert await refusal(dispatcher, task.task_id) == "at_limit"


async def test_a_running_task_of_a_full_queue_is_refused_as_already_running(dispatcher):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.limit(max_running=1)
    assert await refusal(dispatcher, lease.task_id) == "already_running"


async def test_a_node_without_a_task_is_refused_with_where_it_stands(dispatcher):
    run = int(await dispatcher.runs.start(a_diamond()))
    assert await refusal(dispatcher, str(run + 2)) == "blocked"
    await dispatcher.settle(await dispatcher.claim_task(str(run + 1)), Completed(b"1"))
    await dispatcher.settle(await dispatcher.claim_task(str(run + 2)), Failed(a.a_failure()))
    await dispatcher.settle(await dispatcher.claim_task(str(run + 3)), Completed(b"1"))
    assert await refusal(dispatcher, str(run + 4)) == "upstream_failed"
    assert await refusal(dispatcher, str(run + 1)) == "completed"
    with pytest.raises(NotFound):
        await dispatcher.claim_task(str(run))


async def test_a_reserved_task_is_refused_as_reserved(dispatcher):
    task = await dispatcher.enqueue(a.a_task())
    await dispatcher.reserve(task.task_id)
    assert await refusal(dispatcher, task.task_id) == "reserved"


async def test_an_unknown_task_is_not_found(dispatcher):
    await a.a_running_task(dispatcher)
    with pytest.raises(NotFound):
        await dispatcher.claim_task("999")


@pytest.mark.parametrize("end", ["retire", "drain"])
async def test_a_worker_that_leaves_gets_no_work(dispatcher, end):
    task = await dispatcher.enqueue(a.a_task())
    await getattr(dispatcher, end)("second")
    assert await dispatcher.claim(1, worker="second") == []
    assert await refusal(dispatcher, task.task_id) == "worker_not_active"


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(dispatcher):
    await dispatcher.enqueue(a.a_task())
    await dispatcher.pause()
    assert await dispatcher.claim(1) == []
    await dispatcher.resume()
    assert len(await dispatcher.claim(1)) == 1


async def test_pausing_stops_nothing_that_runs(dispatcher):
    lease = await a.a_running_task(dispatcher)
    await dispatcher.pause()
    await dispatcher.settle(lease, Completed(b"1"))
    assert (await dispatcher.task(lease.task_id)).state is TaskState.COMPLETED


async def test_a_second_pause_updates_who_and_why(dispatcher):
    await dispatcher.enqueue(a.a_task())
    assert await dispatcher.pause(actor="ada", reason="bank is down")
    assert await dispatcher.pause(actor="bob", reason="later")
    row = await dispatcher.engine.database.fetchrow("select paused_by, paused_reason from holdfast.queue")
    assert tuple(row) == ("bob", "later")


async def test_a_retried_task_keeps_its_place_before_younger_ones(dispatcher):
    lease = await a.a_running_task(dispatcher, base_backoff_secs=0)
    await dispatcher.enqueue(a.a_task())
    await dispatcher.settle(lease, Failed(a.a_failure()))
    assert (await dispatcher.claim_one()).task_id == lease.task_id


async def expecting(dispatcher, *priorities: int) -> tuple[Claimer, list[list[int]]]:
    """A claimer that saw one task of priority 5, and what it claims after a wake-up for tasks of these priorities."""
    claimer = Claimer(
        WorkerIdentity(
            worker_id=await dispatcher.worker_id(), actions=[a.a_task().action], queues=None, lease_seconds=10.0
        )
    )
    await dispatcher.enqueue(a.a_task(priority=5))
    async with dispatcher.engine.database.transaction() as session:
        (seen,) = await claimer.claim(session, 10, now=0.0)
        ids = [int((await dispatcher.enqueue(a.a_task(priority=one))).task_id) for one in priorities]
        claimer.expect([seen.lane_id], now=0.0)
        taken = []
        while claims := await claimer.claim(session, 10, now=0.0):
            taken.append([ids.index(one.task_id) for one in claims])
    return claimer, taken


async def test_a_lane_named_by_a_wake_up_is_tried_unseen_and_the_rest_found_after(dispatcher):
    claimer, taken = await expecting(dispatcher, 5, 2)
    assert taken == [[0], [1]] and not claimer.may_have_more


async def test_a_wake_up_with_another_priority_than_usual_only_costs_the_look(dispatcher):
    _, taken = await expecting(dispatcher, 2)
    assert taken == [[0]]


async def until_seen(dispatcher, *, want: int, new: int, seconds: float) -> int:
    """How many claims a worker makes, with a wake-up for one lane before each, until it takes the task of another lane.

    `new` tasks of the first lane come before each claim, and `seconds` pass.
    """
    told, other = a.a_task(action="shop.told"), a.a_task(action="shop.other", priority=0)
    await dispatcher.enqueue_many(told, [{}] * 100)
    claimer = await dispatcher._claimer("first")
    async with dispatcher.engine.database.session() as session:
        lane_id = (await claimer.claim(session, 100, now=0.0))[0].lane_id
        dispatcher.know(other.action)
        waiting = int((await dispatcher.enqueue(other)).task_id)
        for number in range(1, 100):
            await dispatcher.enqueue_many(told, [{}] * new)
            claimer.expect([lane_id], now=number * seconds)
            claimed = await claimer.claim(session, want, now=number * seconds)
            if waiting in [one.task_id for one in claimed]:
                return number
    raise AssertionError("It was never seen.")


@pytest.mark.parametrize("seconds", [0.01, 1.0])
async def test_who_hears_of_one_lane_all_the_time_and_has_plenty_looks_at_the_others_in_time(dispatcher, seconds):
    assert await until_seen(dispatcher, want=2, new=4, seconds=seconds) * seconds <= HEADS_SECONDS_MAX + 2 * seconds


@pytest.mark.parametrize("seconds", [0.01, 1.0])
async def test_who_hears_of_one_lane_all_the_time_and_has_room_looks_at_the_others_too(dispatcher, seconds):
    assert await until_seen(dispatcher, want=5, new=1, seconds=seconds) <= UNSEEN_MAX + HEADS_SECONDS_MAX / seconds


async def test_wake_ups_for_two_lanes_are_both_tried(dispatcher):
    claimer = await dispatcher._claimer("first")
    tasks = [a.a_task(action=f"shop.{name}") for name in "ab"]
    async with dispatcher.engine.database.session() as session:
        for task in tasks:
            await dispatcher.enqueue(task)
        lanes = [one.lane_id for one in await claimer.claim(session, 10, now=0.0)]
        assert await claimer.claim(session, 10, now=1.0) == []
        for task in tasks:
            await dispatcher.enqueue(task)
        for lane_id in lanes:
            claimer.expect([lane_id], now=2.0)
        claimed = await claimer.claim_known(session, 10, now=2.0)
    assert sorted(one.lane_id for one in claimed) == sorted(lanes)
