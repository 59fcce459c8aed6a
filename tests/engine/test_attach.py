"""A task set aside for a launched worker: one launch, one attach, and no orphan is forgotten."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.errors import LeaseLost
from holdfast.testing.factories import a_task


@pytest.fixture
async def task(dispatcher):
    return await dispatcher.enqueue(a_task(max_losses=1, input={"order": 7}))


async def test_a_reserved_task_is_still_queued_and_nobody_else_can_claim_it(dispatcher, task):
    await dispatcher.reserve(task.task_id)
    assert (await dispatcher.task(task.task_id)).state is TaskState.QUEUED
    assert await dispatcher.claim(1) == []


async def test_a_task_is_reserved_once(dispatcher, task):
    made = await asyncio.gather(*(dispatcher.reserve(task.task_id) for _ in range(8)))
    assert len([reservation for reservation in made if reservation is not None]) == 1


async def test_a_task_of_a_paused_queue_is_not_reserved(dispatcher, task):
    await dispatcher.pause()
    assert await dispatcher.reserve(task.task_id) is None


async def test_attaching_turns_the_reservation_into_a_lease_on_the_same_attempt(dispatcher, task):
    reservation = await dispatcher.reserve(task.task_id)
    lease = await dispatcher.attach(reservation)
    assert (lease.attempt, lease.claimed.input) == (reservation.attempt, b'{"order":7}')
    assert lease.token != reservation.lease_token
    await dispatcher.settle(lease, Completed(b"1"))


async def test_a_reservation_is_attached_to_once(dispatcher, task):
    reservation = await dispatcher.reserve(task.task_id)
    await dispatcher.attach(reservation)
    with pytest.raises(LeaseLost):
        await dispatcher.attach(reservation, worker="second")


async def test_who_lost_the_answer_is_given_its_lease_again(dispatcher, task, clock):
    reservation = await dispatcher.reserve(task.task_id)
    lease = await dispatcher.attach(reservation)
    again = await dispatcher.attach(reservation)
    assert again.claimed == lease.claimed
    with pytest.raises(LeaseLost):
        await dispatcher.attach(msgspec.structs.replace(reservation, attempt=2))
    await clock.advance(seconds=60)
    with pytest.raises(LeaseLost):
        await dispatcher.attach(reservation)


async def test_a_reservation_that_expired_cannot_be_attached_to(dispatcher, task, clock):
    reservation = await dispatcher.reserve(task.task_id)
    await clock.advance(seconds=120)
    with pytest.raises(LeaseLost):
        await dispatcher.attach(reservation)


async def test_a_worker_that_may_take_half_a_day_finds_its_token_good(dispatcher, task, clock):
    reservation = await dispatcher.reserve(task.task_id, launch_seconds=12 * 3600)
    await clock.advance("11h")
    await dispatcher.settle(await dispatcher.attach(reservation), Completed(b"1"))


async def test_a_worker_that_left_cannot_attach(dispatcher, task):
    reservation = await dispatcher.reserve(task.task_id)
    await dispatcher.retire("first")
    with pytest.raises(LeaseLost):
        await dispatcher.attach(reservation)


async def test_an_orphaned_reservation_is_lost_after_the_launch_time(dispatcher, task, clock):
    await dispatcher.reserve(task.task_id)
    await clock.advance(seconds=119)
    assert await dispatcher.reap_once() == 0
    await clock.advance(seconds=1)
    assert await dispatcher.reap_once() == 1
    (attempt,) = await dispatcher.attempts(task.task_id)
    assert attempt.state is AttemptState.LOST and "never attached" in attempt.message


async def test_a_second_orphan_spends_the_loss_budget(dispatcher, task, clock):
    for _ in range(2):
        await dispatcher.reserve(task.task_id)
        await clock.advance(seconds=120)
        await dispatcher.reap_once()
    assert (await dispatcher.attempts(task.task_id))[-1].reason == "losses_exhausted"


async def test_the_one_shot_token_settles_nothing(dispatcher, task):
    reservation = await dispatcher.reserve(task.task_id)
    lease = await dispatcher.attach(reservation)
    claimed = msgspec.structs.replace(lease.claimed, lease_token=reservation.lease_token)
    forged = msgspec.structs.replace(lease, claimed=claimed)
    with pytest.raises(LeaseLost):
        await dispatcher.settle(forged, Completed(b"1"))


async def test_a_canceled_reservation_ends_the_task_at_once(dispatcher, task):
    reservation = await dispatcher.reserve(task.task_id)
    assert await dispatcher.cancel(task.task_id) == "canceled"
    with pytest.raises(LeaseLost):
        await dispatcher.attach(reservation)
    assert [attempt.state for attempt in await dispatcher.attempts(task.task_id)] == [AttemptState.CANCELED]
