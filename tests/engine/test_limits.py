"""Limits are exact, whoever claims at once, and nothing of them can leak."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.limits.breaker import Breaker, CircuitState
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.limits.breakers import steer
from holdfast.testing.factories import ACTION, a_task


async def running(dispatcher) -> int:
    return await dispatcher.engine.database.fetchval("select count(*) from holdfast.live where state in ('r', 'v')")


async def queue_of(dispatcher, tasks=50, **limits):
    await dispatcher.enqueue_many(a_task(), [{}] * tasks)
    await dispatcher.limit(**limits)


async def test_claimers_at_once_never_exceed_max_running(dispatcher):
    await queue_of(dispatcher, max_running=7)
    await asyncio.gather(*(dispatcher.claim(5, worker=f"worker-{number}") for number in range(10)))
    # A claim does not wait for another that counts the same limit, so the last places may stay free.
    assert await running(dispatcher) in (5, 7)
    await dispatcher.claim(5, worker="last")
    assert await running(dispatcher) == 7


async def test_a_claim_outside_a_transaction_keeps_the_limit_too(dispatcher):
    await queue_of(dispatcher, max_running=7)

    async def claim_alone(worker):
        claimer = await dispatcher._claimer(worker)
        async with dispatcher.engine.database.session() as session:
            return await claimer.claim(session, 5, now=0.0)

    await asyncio.gather(*(claim_alone(f"worker-{number}") for number in range(10)))
    assert await running(dispatcher) in (5, 7)
    await claim_alone("last")
    assert await running(dispatcher) == 7


async def test_claims_of_named_tasks_at_once_keep_the_limit_too(dispatcher):
    tasks = await dispatcher.enqueue_many(a_task(), [{}] * 10)
    await dispatcher.limit(max_running=3)
    claims = [dispatcher.claim_task(task.task_id, worker=task.task_id) for task in tasks]
    await asyncio.gather(*claims, return_exceptions=True)
    assert await running(dispatcher) == 3


async def test_a_reservation_counts_as_running(dispatcher):
    tasks = await dispatcher.enqueue_many(a_task(), [{}] * 3)
    await dispatcher.limit(max_running=2)
    await dispatcher.reserve(tasks[0].task_id)
    assert len(await dispatcher.claim(3)) == 1


async def test_a_reservation_that_is_not_made_spends_no_start(dispatcher, clock):
    """A launcher asks again and again for what an open breaker holds back; others of the queue go on."""
    await clock.freeze()
    await dispatcher.guard(ACTION, breaker=Breaker())
    held = await dispatcher.enqueue(a_task())
    other = await dispatcher.enqueue(a_task(action="shop.mail"))
    await steer(dispatcher.engine, 1, ACTION, CircuitState.OPEN, actor="ann", reason="down")
    await dispatcher.limit(starts_per_second=1)
    assert await dispatcher.reserve(held.task_id) is None
    assert await dispatcher.reserve(other.task_id) is not None
    assert await dispatcher.claim(1) == []


@pytest.mark.parametrize("limits", [{"max_running": 1}, {"starts_per_second": 1}])
async def test_a_ring_leads_past_no_limit(dispatcher, limits):
    """A worker that is told of a lane tries it unseen; a limit that it has forgotten holds all the same."""
    claimer = await dispatcher._claimer("first")
    session = await dispatcher.engine.database.connect()
    try:
        await queue_of(dispatcher, tasks=1, **limits)
        [first] = await claimer.claim(session, 5, now=0.0)
        assert await claimer.claim(session, 5, now=1.0) == []
        await dispatcher.enqueue_many(a_task(), [{}] * 4)
        claimer.expect([first.lane_id], now=1.0)
        assert await claimer.claim(session, 5, now=1.0) == []
    finally:
        await session.close()


async def test_a_settled_task_makes_room(dispatcher):
    await queue_of(dispatcher, max_running=1)
    lease = await dispatcher.claim_one()
    assert await dispatcher.claim(1, worker="second") == []
    await dispatcher.settle(lease, Completed(b"1"))
    assert len(await dispatcher.claim(1, worker="second")) == 1


async def test_a_lost_worker_makes_room_once_it_is_reaped(dispatcher, clock):
    await queue_of(dispatcher, max_running=1)
    lease = await dispatcher.claim_one()
    await clock.advance(seconds=lease.seconds)
    await dispatcher.reap_once()
    assert len(await dispatcher.claim(1, worker="second")) == 1


async def test_a_limit_holds_back_its_own_queue_only(dispatcher):
    await queue_of(dispatcher, max_running=1)
    await dispatcher.enqueue_many(a_task(queue="mail"), [{}] * 5)
    queues = [(await dispatcher.task(lease.task_id)).queue for lease in await dispatcher.claim(10)]
    assert sorted(queues) == ["default", *["mail"] * 5]


async def claim_all(dispatcher, count, worker):
    """Claim until there is enough or nothing that others count just now: they are not waited for."""
    claimed = await dispatcher.claim(count, worker=worker)
    while len(claimed) < count and (await dispatcher._claimer(worker)).has_missed:
        claimed += await dispatcher.claim(count - len(claimed), worker=worker)
    return claimed


async def test_two_limited_queues_never_deadlock_their_claimers(dispatcher):
    for queue in ("first", "second"):
        await dispatcher.enqueue_many(a_task(queue=queue), [{}] * 40)
        await dispatcher.limit(queue, max_running=30)
    claims = [claim_all(dispatcher, number % 7 + 1, f"worker-{number}") for number in range(20)]
    await asyncio.gather(*claims)
    assert await running(dispatcher) == 60


@pytest.mark.parametrize("per_second", [1, 5])
async def test_a_second_has_no_more_starts_than_allowed(dispatcher, clock, per_second):
    await clock.freeze()
    await queue_of(dispatcher, starts_per_second=per_second)
    assert len(await dispatcher.claim(20)) == per_second
    assert await dispatcher.claim(20) == []


async def test_starts_come_back_with_time_up_to_one_second_of_them(dispatcher, clock):
    await clock.freeze()
    await queue_of(dispatcher, starts_per_second=5)
    await dispatcher.claim(20)
    await clock.advance(seconds=0.45)
    assert len(await dispatcher.claim(20)) == 2
    await clock.advance(seconds=60)
    assert len(await dispatcher.claim(20)) == 5


async def test_less_than_one_start_per_second_is_possible(dispatcher, clock):
    await clock.freeze()
    await queue_of(dispatcher, starts_per_second=0.1)
    assert len(await dispatcher.claim(20)) == 1
    await clock.advance(seconds=9)
    assert await dispatcher.claim(20) == []
    await clock.advance(seconds=1.1)
    assert len(await dispatcher.claim(20)) == 1


async def test_starts_are_spent_only_on_what_started(dispatcher, clock):
    await clock.freeze()
    await queue_of(dispatcher, tasks=1, starts_per_second=5)
    assert len(await dispatcher.claim(5)) == 1
    await dispatcher.enqueue_many(a_task(), [{}] * 10)
    assert len(await dispatcher.claim(10)) == 4


async def test_claimers_at_once_never_exceed_the_starts_of_a_second(dispatcher, clock):
    await clock.freeze()
    await queue_of(dispatcher, starts_per_second=7)
    claims = await asyncio.gather(*(claim_all(dispatcher, 3, f"worker-{number}") for number in range(8)))
    assert sum(map(len, claims)) == 7
