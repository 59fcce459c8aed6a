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


async def expiry(dispatcher, lease):
    return (await dispatcher.task(lease.task_id)).lease_expires_at


async def test_a_heartbeat_extends_the_lease_from_now(dispatcher, clock):
    lease = await a_running_task(dispatcher)
    before = await expiry(dispatcher, lease)
    await clock.advance(seconds=4)
    beat = await dispatcher.heartbeat(lease)
    assert beat.renewed == {lease.claimed.task_id} and not beat.lost
    assert (await expiry(dispatcher, lease) - before).total_seconds() == pytest.approx(4, abs=0.5)


async def test_a_beating_worker_keeps_its_task_beyond_the_first_lease(dispatcher, clock):
    lease = await a_running_task(dispatcher)
    for _ in range(5):
        await clock.advance(seconds=lease.seconds - 1)
        await dispatcher.heartbeat(lease)
        assert await dispatcher.reap_once() == 0
    await dispatcher.settle(lease, Completed(b"1"))


async def test_an_expired_lease_is_never_revived(dispatcher, clock):
    lease = await a_running_task(dispatcher)
    before = await expiry(dispatcher, lease)
    await clock.advance(seconds=lease.seconds)
    beat = await dispatcher.heartbeat(lease)
    assert beat.lost == {lease.claimed.task_id}
    assert await expiry(dispatcher, lease) == before


async def test_another_token_extends_nothing(dispatcher):
    lease = await a_running_task(dispatcher)
    stranger = msgspec.structs.replace(lease, claimed=msgspec.structs.replace(lease.claimed, lease_token=uuid.uuid4()))
    assert (await dispatcher.heartbeat(stranger)).lost == {lease.claimed.task_id}


async def test_the_holder_of_an_earlier_attempt_extends_nothing(dispatcher, clock):
    stale = await a_running_task(dispatcher)
    await clock.advance(seconds=stale.seconds)
    await dispatcher.reap_once()
    current = await dispatcher.claim_one(worker="second")
    before = await expiry(dispatcher, current)
    await clock.advance(seconds=1)
    assert (await dispatcher.heartbeat(stale)).lost == {stale.claimed.task_id}
    assert await expiry(dispatcher, current) == before


async def test_a_settled_task_is_lost_to_its_worker(dispatcher):
    lease = await a_running_task(dispatcher)
    await dispatcher.settle(lease, Completed(b"1"))
    assert (await dispatcher.heartbeat(lease)).lost == {lease.claimed.task_id}


async def test_a_clock_set_back_never_shortens_a_lease(dispatcher, clock):
    lease = await a_running_task(dispatcher)
    before = await expiry(dispatcher, lease)
    await clock.step(-3600)
    assert (await dispatcher.heartbeat(lease)).renewed
    assert await expiry(dispatcher, lease) == before


async def test_the_answer_tells_which_tasks_must_stop(dispatcher):
    kept, stopped = [await a_running_task(dispatcher) for _ in range(2)]
    await dispatcher.cancel(stopped.task_id)
    beat = await dispatcher.heartbeat(kept, stopped)
    assert beat.canceled == {stopped.claimed.task_id} and len(beat.renewed) == 2


@pytest.mark.parametrize(("end", "state"), [("drain", "draining"), ("retire", None)])
async def test_the_answer_tells_what_became_of_the_worker(dispatcher, end, state):
    lease = await a_running_task(dispatcher)
    await getattr(dispatcher, end)("first")
    assert (await dispatcher.heartbeat(lease)).worker_state == state


async def test_a_silent_worker_is_shown_as_lost_and_keeps_its_lease(dispatcher, clock):
    lease = await a_running_task(dispatcher)
    await clock.advance(seconds=lease.seconds - 1)
    assert await lose_workers_once(dispatcher.engine.database, silent_seconds=5) == 1
    assert (await dispatcher.task(lease.task_id)).state is TaskState.RUNNING


async def test_a_worker_shown_as_lost_is_back_with_its_next_beat(dispatcher, clock):
    lease = await a_running_task(dispatcher)
    await clock.advance(seconds=3600)
    await lose_workers_once(dispatcher.engine.database, silent_seconds=30)
    assert (await dispatcher.heartbeat(lease)).worker_state == "active"
    with pytest.raises(LeaseLost):
        await dispatcher.reap_once()
        await dispatcher.settle(lease, Completed(b"1"))


async def test_the_answer_ranks_a_worker_among_its_kind(dispatcher):
    ids = []
    for actions in (["shop.mail"], ["shop.other"], ["shop.mail"]):
        row = await dispatcher.engine.database.fetchrow(
            sql("register_worker"), "w", "", None, actions, 1, "{}", 1, None
        )
        ids.append(row["worker_id"])
    async with dispatcher.engine.database.transaction() as session:
        beats = [await heartbeat(session, worker_id, {}, lease_seconds=10.0) for worker_id in ids]
    assert [(beat.peers, beat.rank) for beat in beats] == [(2, 0), (1, 0), (2, 1)]
