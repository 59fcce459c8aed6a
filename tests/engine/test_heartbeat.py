"""A heartbeat extends what is still held, and revives nothing."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.states import TaskState
from holdfast.engine.lifecycle.tasks.heartbeat import heartbeat
from holdfast.engine.lifecycle.tasks.reap import lose_workers_once
from holdfast.errors import LeaseLost
from holdfast.store.statements import sql
from holdfast.testing.factories import a_running_task


async def expiry(harness, lease):
    return (await harness.task(lease.task_id)).lease_expires_at


async def test_a_heartbeat_extends_the_lease_from_now(harness, clock):
    lease = await a_running_task(harness)
    before = await expiry(harness, lease)
    await clock.advance(seconds=4)
    beat = await harness.heartbeat(lease)
    assert beat.renewed == {lease.claimed.task_id} and not beat.lost
    assert (await expiry(harness, lease) - before).total_seconds() == pytest.approx(4, abs=0.5)


async def test_a_beating_worker_keeps_its_task_beyond_the_first_lease(harness, clock):
    lease = await a_running_task(harness)
    for _ in range(5):
        await clock.advance(seconds=lease.seconds - 1)
        await harness.heartbeat(lease)
        assert await harness.reap_once() == 0
    await harness.settle(lease, Completed(b"1"))


async def test_an_expired_lease_is_never_revived(harness, clock):
    lease = await a_running_task(harness)
    before = await expiry(harness, lease)
    await clock.advance(seconds=lease.seconds)
    beat = await harness.heartbeat(lease)
    assert beat.lost == {lease.claimed.task_id}
    assert await expiry(harness, lease) == before


async def test_another_token_extends_nothing(harness):
    lease = await a_running_task(harness)
    stranger = msgspec.structs.replace(lease, claimed=msgspec.structs.replace(lease.claimed, lease_token=uuid.uuid4()))
    assert (await harness.heartbeat(stranger)).lost == {lease.claimed.task_id}


async def test_the_holder_of_an_earlier_attempt_extends_nothing(harness, clock):
    stale = await a_running_task(harness)
    await clock.advance(seconds=stale.seconds)
    await harness.reap_once()
    current = await harness.claim_one(worker="second")
    before = await expiry(harness, current)
    await clock.advance(seconds=1)
    assert (await harness.heartbeat(stale)).lost == {stale.claimed.task_id}
    assert await expiry(harness, current) == before


async def test_a_settled_task_is_lost_to_its_worker(harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Completed(b"1"))
    assert (await harness.heartbeat(lease)).lost == {lease.claimed.task_id}


async def test_a_clock_set_back_never_shortens_a_lease(harness, clock):
    lease = await a_running_task(harness)
    before = await expiry(harness, lease)
    await clock.step(-3600)
    assert (await harness.heartbeat(lease)).renewed
    assert await expiry(harness, lease) == before


async def test_the_answer_tells_which_tasks_must_stop(harness):
    kept, stopped = [await a_running_task(harness) for _ in range(2)]
    await harness.cancel(stopped.task_id)
    beat = await harness.heartbeat(kept, stopped)
    assert beat.canceled == {stopped.claimed.task_id} and len(beat.renewed) == 2


@pytest.mark.parametrize(("end", "state"), [("drain", "draining"), ("retire", None)])
async def test_the_answer_tells_what_became_of_the_worker(harness, end, state):
    lease = await a_running_task(harness)
    await getattr(harness, end)("first")
    assert (await harness.heartbeat(lease)).worker_state == state


async def test_a_silent_worker_is_shown_as_lost_and_keeps_its_lease(harness, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=lease.seconds - 1)
    assert await lose_workers_once(harness.engine.database, silent_seconds=5) == 1
    assert (await harness.task(lease.task_id)).state is TaskState.RUNNING


async def test_a_worker_shown_as_lost_is_back_with_its_next_beat(harness, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=3600)
    await lose_workers_once(harness.engine.database, silent_seconds=30)
    assert (await harness.heartbeat(lease)).worker_state == "active"
    with pytest.raises(LeaseLost):
        await harness.reap_once()
        await harness.settle(lease, Completed(b"1"))


async def test_the_answer_ranks_a_worker_among_its_kind(harness):
    ids = []
    for actions in (["shop.mail"], ["shop.other"], ["shop.mail"]):
        row = await harness.engine.database.fetchrow(sql("register_worker"), "w", "", None, actions, 1, "{}", 1, None)
        ids.append(row["worker_id"])
    async with harness.engine.database.transaction() as session:
        beats = [await heartbeat(session, worker_id, {}, lease_seconds=10.0) for worker_id in ids]
    assert [(beat.peers, beat.rank) for beat in beats] == [(2, 0), (1, 0), (2, 1)]
