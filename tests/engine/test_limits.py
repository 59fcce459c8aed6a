"""Limits are exact, whoever claims at once, and nothing of them can leak."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.limits.breaker import Breaker, CircuitState
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.limits.breakers import steer
from holdfast.testing.factories import ACTION, a_task


async def running(harness) -> int:
    return await harness.engine.database.fetchval("select count(*) from holdfast.live where state in ('r', 'v')")


async def queue_of(harness, tasks=50, **limits):
    await harness.enqueue_many(a_task(), [{}] * tasks)
    await harness.limit(**limits)


async def test_claimers_at_once_never_exceed_max_running(harness):
    await queue_of(harness, max_running=7)
    await asyncio.gather(*(harness.claim(5, worker=f"worker-{number}") for number in range(10)))
    # A claim does not wait for another that counts the same limit, so the last places may stay free.
    assert await running(harness) in (5, 7)
    await harness.claim(5, worker="last")
    assert await running(harness) == 7


async def test_a_claim_outside_a_transaction_keeps_the_limit_too(harness):
    await queue_of(harness, max_running=7)

    async def claim_alone(worker):
        claimer = await harness._claimer(worker)
        async with harness.engine.database.session() as session:
            return await claimer.claim(session, 5, now=0.0)

    await asyncio.gather(*(claim_alone(f"worker-{number}") for number in range(10)))
    assert await running(harness) in (5, 7)
    await claim_alone("last")
    assert await running(harness) == 7


async def test_claims_of_named_tasks_at_once_keep_the_limit_too(harness):
    tasks = await harness.enqueue_many(a_task(), [{}] * 10)
    await harness.limit(max_running=3)
    claims = [harness.claim_task(task.task_id, worker=task.task_id) for task in tasks]
    await asyncio.gather(*claims, return_exceptions=True)
    assert await running(harness) == 3


async def test_a_reservation_counts_as_running(harness):
    tasks = await harness.enqueue_many(a_task(), [{}] * 3)
    await harness.limit(max_running=2)
    await harness.reserve(tasks[0].task_id)
    assert len(await harness.claim(3)) == 1


async def test_a_reservation_that_is_not_made_spends_no_start(harness, clock):
    """A launcher asks again and again for what an open breaker holds back; others of the queue go on."""
    await clock.freeze()
    await harness.guard(ACTION, breaker=Breaker())
    held = await harness.enqueue(a_task())
    other = await harness.enqueue(a_task(action="shop.mail"))
    await steer(harness.engine, 1, ACTION, CircuitState.OPEN, actor="ann", reason="down")
    await harness.limit(starts_per_second=1)
    assert await harness.reserve(held.task_id) is None
    assert await harness.reserve(other.task_id) is not None
    assert await harness.claim(1) == []


@pytest.mark.parametrize("limits", [{"max_running": 1}, {"starts_per_second": 1}])
async def test_a_ring_leads_past_no_limit(harness, limits):
    """A worker that is told of a lane tries it unseen; a limit that it has forgotten holds all the same."""
    claimer = await harness._claimer("first")
    session = await harness.engine.database.connect()
    try:
        await queue_of(harness, tasks=1, **limits)
        [first] = await claimer.claim(session, 5, now=0.0)
        assert await claimer.claim(session, 5, now=1.0) == []
        await harness.enqueue_many(a_task(), [{}] * 4)
        claimer.expect([first.lane_id], now=1.0)
        assert await claimer.claim(session, 5, now=1.0) == []
    finally:
        await session.close()


async def test_a_settled_task_makes_room(harness):
    await queue_of(harness, max_running=1)
    lease = await harness.claim_one()
    assert await harness.claim(1, worker="second") == []
    await harness.settle(lease, Completed(b"1"))
    assert len(await harness.claim(1, worker="second")) == 1


async def test_a_lost_worker_makes_room_once_it_is_reaped(harness, clock):
    await queue_of(harness, max_running=1)
    lease = await harness.claim_one()
    await clock.advance(seconds=lease.seconds)
    await harness.reap_once()
    assert len(await harness.claim(1, worker="second")) == 1


async def test_a_limit_holds_back_its_own_queue_only(harness):
    await queue_of(harness, max_running=1)
    await harness.enqueue_many(a_task(queue="mail"), [{}] * 5)
    queues = [(await harness.task(lease.task_id)).queue for lease in await harness.claim(10)]
    assert sorted(queues) == ["default", *["mail"] * 5]


async def claim_all(harness, count, worker):
    """Claim until there is enough or nothing that others count just now: they are not waited for."""
    claimed = await harness.claim(count, worker=worker)
    while len(claimed) < count and (await harness._claimer(worker)).has_missed:
        claimed += await harness.claim(count - len(claimed), worker=worker)
    return claimed


async def test_two_limited_queues_never_deadlock_their_claimers(harness):
    for queue in ("first", "second"):
        await harness.enqueue_many(a_task(queue=queue), [{}] * 40)
        await harness.limit(queue, max_running=30)
    claims = [claim_all(harness, number % 7 + 1, f"worker-{number}") for number in range(20)]
    await asyncio.gather(*claims)
    assert await running(harness) == 60


@pytest.mark.parametrize("per_second", [1, 5])
async def test_a_second_has_no_more_starts_than_allowed(harness, clock, per_second):
    await clock.freeze()
    await queue_of(harness, starts_per_second=per_second)
    assert len(await harness.claim(20)) == per_second
    assert await harness.claim(20) == []


async def test_starts_come_back_with_time_up_to_one_second_of_them(harness, clock):
    await clock.freeze()
    await queue_of(harness, starts_per_second=5)
    await harness.claim(20)
    await clock.advance(seconds=0.45)
    assert len(await harness.claim(20)) == 2
    await clock.advance(seconds=60)
    assert len(await harness.claim(20)) == 5


async def test_less_than_one_start_per_second_is_possible(harness, clock):
    await clock.freeze()
    await queue_of(harness, starts_per_second=0.1)
    assert len(await harness.claim(20)) == 1
    await clock.advance(seconds=9)
    assert await harness.claim(20) == []
    await clock.advance(seconds=1.1)
    assert len(await harness.claim(20)) == 1


async def test_starts_are_spent_only_on_what_started(harness, clock):
    await clock.freeze()
    await queue_of(harness, tasks=1, starts_per_second=5)
    assert len(await harness.claim(5)) == 1
    await harness.enqueue_many(a_task(), [{}] * 10)
    assert len(await harness.claim(10)) == 4


async def test_claimers_at_once_never_exceed_the_starts_of_a_second(harness, clock):
    await clock.freeze()
    await queue_of(harness, starts_per_second=7)
    claims = await asyncio.gather(*(claim_all(harness, 3, f"worker-{number}") for number in range(8)))
    assert sum(map(len, claims)) == 7
