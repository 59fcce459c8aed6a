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
async def task(harness):
    return await harness.enqueue(a_task(max_losses=1, input={"order": 7}))


async def test_a_reserved_task_is_still_queued_and_nobody_else_can_claim_it(harness, task):
    await harness.reserve(task.task_id)
    assert (await harness.task(task.task_id)).state is TaskState.QUEUED
    assert await harness.claim(1) == []


async def test_a_task_is_reserved_once(harness, task):
    made = await asyncio.gather(*(harness.reserve(task.task_id) for _ in range(8)))
    assert len([reservation for reservation in made if reservation is not None]) == 1


async def test_a_task_of_a_paused_queue_is_not_reserved(harness, task):
    await harness.pause()
    assert await harness.reserve(task.task_id) is None


async def test_attaching_turns_the_reservation_into_a_lease_on_the_same_attempt(harness, task):
    reservation = await harness.reserve(task.task_id)
    lease = await harness.attach(reservation)
    assert (lease.attempt, lease.claimed.input) == (reservation.attempt, b'{"order":7}')
    assert lease.token != reservation.lease_token
    await harness.settle(lease, Completed(b"1"))


async def test_a_reservation_is_attached_to_once(harness, task):
    reservation = await harness.reserve(task.task_id)
    await harness.attach(reservation)
    with pytest.raises(LeaseLost):
        await harness.attach(reservation, worker="second")


async def test_who_lost_the_answer_is_given_its_lease_again(harness, task, clock):
    reservation = await harness.reserve(task.task_id)
    lease = await harness.attach(reservation)
    again = await harness.attach(reservation)
    assert again.claimed == lease.claimed
    with pytest.raises(LeaseLost):
        await harness.attach(msgspec.structs.replace(reservation, attempt=2))
    await clock.advance(seconds=60)
    with pytest.raises(LeaseLost):
        await harness.attach(reservation)


async def test_a_reservation_that_expired_cannot_be_attached_to(harness, task, clock):
    reservation = await harness.reserve(task.task_id)
    await clock.advance(seconds=120)
    with pytest.raises(LeaseLost):
        await harness.attach(reservation)


async def test_a_worker_that_may_take_half_a_day_finds_its_token_good(harness, task, clock):
    reservation = await harness.reserve(task.task_id, launch_seconds=12 * 3600)
    await clock.advance("11h")
    await harness.settle(await harness.attach(reservation), Completed(b"1"))


async def test_a_worker_that_left_cannot_attach(harness, task):
    reservation = await harness.reserve(task.task_id)
    await harness.retire("first")
    with pytest.raises(LeaseLost):
        await harness.attach(reservation)


async def test_an_orphaned_reservation_is_lost_after_the_launch_time(harness, task, clock):
    await harness.reserve(task.task_id)
    await clock.advance(seconds=119)
    assert await harness.reap_once() == 0
    await clock.advance(seconds=1)
    assert await harness.reap_once() == 1
    (attempt,) = await harness.attempts(task.task_id)
    assert attempt.state is AttemptState.LOST and "never attached" in attempt.message


async def test_a_second_orphan_spends_the_loss_budget(harness, task, clock):
    for _ in range(2):
        await harness.reserve(task.task_id)
        await clock.advance(seconds=120)
        await harness.reap_once()
    assert (await harness.attempts(task.task_id))[-1].reason == "losses_exhausted"


async def test_the_one_shot_token_settles_nothing(harness, task):
    reservation = await harness.reserve(task.task_id)
    lease = await harness.attach(reservation)
    claimed = msgspec.structs.replace(lease.claimed, lease_token=reservation.lease_token)
    forged = msgspec.structs.replace(lease, claimed=claimed)
    with pytest.raises(LeaseLost):
        await harness.settle(forged, Completed(b"1"))


async def test_a_canceled_reservation_ends_the_task_at_once(harness, task):
    reservation = await harness.reserve(task.task_id)
    assert await harness.cancel(task.task_id) == "canceled"
    with pytest.raises(LeaseLost):
        await harness.attach(reservation)
    assert [attempt.state for attempt in await harness.attempts(task.task_id)] == [AttemptState.CANCELED]
