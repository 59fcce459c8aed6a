"""What guards a lease: beats, reservations, reaping, and the time of waiting tasks."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
from tests.core.flows import a_diamond
from tests.guards.checks.stage import (
    Stage,
    check,
    forged,
    handed_over,
    refuses,
    reserved,
)

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.lifecycle.tasks.claim_named import claim_task
from holdfast.engine.lifecycle.tasks.heartbeat import heartbeat, renew_ended
from holdfast.engine.lifecycle.tasks.reap import reap_once
from holdfast.errors import Conflict, LeaseLost
from holdfast.server.worker_api.remote_workers import RemoteWorkers
from holdfast.store.statements import sql
from holdfast.testing.factories import (
    a_delayed_task,
    a_running_task,
    a_task,
)


@check
async def a_stale_token_renews_nothing(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=1)
    beat = await stage.harness.heartbeat(forged(lease, lease_token=uuid.uuid4()))
    assert beat.lost == {lease.claimed.task_id}


@check
async def a_reservation_is_not_kept_alive_by_beats(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task())
    reservation = await stage.harness.reserve(task.task_id, launch_seconds=5)
    assert reservation is not None
    async with stage.engine.database.session() as session:
        tokens = {reservation.task_id: reservation.lease_token}
        beat = await heartbeat(session, await stage.harness.worker_id(), tokens, lease_seconds=60)
    assert beat.lost == {reservation.task_id}


@check
async def an_expired_lease_is_never_revived(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert (await stage.harness.heartbeat(lease)).lost == {lease.claimed.task_id}
    assert await stage.harness.reap_once() == 1


@check
async def a_beat_waits_for_nobody_and_does_not_renew_the_next_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with handed_over(stage, lease):
        beating = asyncio.ensure_future(stage.harness.heartbeat(lease))
        await stage.waits(beating)
        assert beating.done() and beating.result().busy == {lease.claimed.task_id}
    await beating
    assert (await stage.harness.heartbeat(lease)).lost == {lease.claimed.task_id}


@check
async def only_a_lease_that_is_held_is_busy(stage: Stage) -> None:
    """Under a lock of its row; a stale token, a reservation and an expired lease are lost."""
    stale, expired, own = [await a_running_task(stage.harness) for _ in range(3)]
    task = await stage.harness.enqueue(a_task())
    reservation = await stage.harness.reserve(task.task_id, launch_seconds=60)
    assert reservation is not None
    await stage.value(
        "update holdfast.live set lease_expires_at = holdfast.instant() where task_id = $1", expired.claimed.task_id
    )
    tokens = {one.claimed.task_id: one.token for one in (expired, own)}
    tokens |= {stale.claimed.task_id: uuid.uuid4(), reservation.task_id: reservation.lease_token}
    workers, held = RemoteWorkers(stage.engine), [expired, own, stale]
    async with stage.engine.database.transaction() as holder, stage.engine.database.session() as session:
        await holder.fetch(sql("lock_tasks"), list(tokens))
        beat = await heartbeat(session, own.worker_id, tokens, lease_seconds=60)
        assert (beat.busy, beat.renewed) == ({own.claimed.task_id}, set())
        assert beat.lost == tokens.keys() - {own.claimed.task_id}
        alone = {}
        for one in held:
            try:
                token = tokens[one.claimed.task_id]
                alone[one.task_id] = (await workers.heartbeat(one.claimed.task_id, one.attempt, token)).is_busy
            except LeaseLost:
                alone[one.task_id] = False
        for attempt, number in ((own.attempt + 1, own.claimed.task_id), (reservation.attempt, reservation.task_id)):
            with refuses():
                await workers.heartbeat(number, attempt, tokens[number])
        assert [one for one, is_busy in alone.items() if is_busy] == [own.task_id]
        # An exchange names no tokens: what its worker holds is busy.
        for worker, busy in (("first", {own.claimed.task_id, stale.claimed.task_id}), ("second", set[int]())):
            number = await stage.harness.worker_id(worker)
            answer = await workers.exchange(number, held=list(tokens), dones=(), queues=None, limit=0)
            assert (set(answer.busy), set(answer.lost)) == (busy, tokens.keys() - busy)


@check
async def an_ended_attempt_keeps_its_own_lease_alone(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=1)
    before = await stage.value("select lease_expires_at from holdfast.live")
    assert await kept(stage, lease.claimed.task_id, uuid.uuid4()) == set()
    assert await stage.value("select lease_expires_at from holdfast.live") == before
    assert await kept(stage, lease.claimed.task_id, lease.token) == {lease.claimed.task_id}
    assert await stage.value("select lease_expires_at from holdfast.live") > before


@check
async def what_is_kept_until_it_is_settled_runs(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task())
    reservation = await stage.harness.reserve(task.task_id, launch_seconds=5)
    assert reservation is not None
    assert await kept(stage, reservation.task_id, reservation.lease_token) == set()


@check
async def an_expired_lease_is_not_kept_to_be_settled(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert await kept(stage, lease.claimed.task_id, lease.token) == set()
    assert await stage.harness.reap_once() == 1


@check
async def no_beat_waits_for_what_is_being_settled(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with stage.engine.database.transaction() as settling, stage.impatient() as heartbeat_thread:
        await settling.fetch(sql("lock_tasks"), [lease.claimed.task_id])
        assert await renew_ended(heartbeat_thread, [lease.claimed.task_id], [lease.token], lease_seconds=60) == set()


async def kept(stage: Stage, task_id: int, token: uuid.UUID) -> frozenset[int]:
    async with stage.engine.database.session() as session:
        return await renew_ended(session, [task_id], [token], lease_seconds=60)


@check
async def a_running_task_cannot_be_reserved(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task())
    identity = (await stage.harness._claimer("first")).identity
    async with stage.engine.database.transaction() as session:
        await claim_task(session, identity, int(task.task_id))
        reserving = asyncio.ensure_future(stage.harness.reserve(task.task_id))
        await stage.waits(reserving)
    assert await reserving is None


@check
async def a_task_of_a_paused_queue_cannot_be_reserved(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task())
    await stage.harness.pause()
    assert await stage.harness.reserve(task.task_id) is None


@check
async def only_the_exact_attempt_can_be_attached(stage: Stage) -> None:
    reservation = await reserved(stage)
    with refuses(Conflict):
        await stage.harness.attach(msgspec.structs.replace(reservation, attempt=reservation.attempt + 1))
    await stage.harness.attach(reservation)


@check
async def only_the_right_token_can_be_attached(stage: Stage) -> None:
    reservation = await reserved(stage)
    with refuses(Conflict):
        await stage.harness.attach(msgspec.structs.replace(reservation, token="guessed"))


@check
async def a_running_attempt_cannot_be_attached_again(stage: Stage) -> None:
    reservation = await reserved(stage)
    await stage.harness.attach(reservation)
    with refuses(Conflict):
        await stage.harness.attach(reservation, worker="second")


@check
async def a_reservation_past_its_time_cannot_be_attached(stage: Stage) -> None:
    reservation = await reserved(stage)
    await stage.clock.advance(seconds=31)
    with refuses(Conflict):
        await stage.harness.attach(reservation)


@check
async def a_worker_that_drains_attaches_nothing(stage: Stage) -> None:
    reservation = await reserved(stage)
    await stage.harness.drain("first")
    with refuses(Conflict):
        await stage.harness.attach(reservation)


@check
async def a_valid_lease_is_not_reaped(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.harness.enqueue(a_task())
    assert await stage.harness.reap_once() == 0
    await stage.harness.settle(lease, Completed(b"1"))


@check
async def an_expired_lease_is_reaped_once(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert [await stage.harness.reap_once() for _ in range(2)] == [1, 0]


@check
async def a_cancel_past_its_grace_is_forced(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.harness.cancel(lease.task_id, grace_seconds=2)
    await stage.clock.advance(seconds=3)
    assert await stage.harness.reap_once() == 1
    assert await stage.state(lease.task_id) == "canceled"


@check
async def a_time_limit_that_nobody_keeps_is_kept_here(stage: Stage) -> None:
    lease = await a_running_task(stage.harness, timeout_seconds=5)
    for seconds, is_over in ((lease.seconds - 1, False), (lease.seconds - 1, False), (8, True)):
        await stage.clock.advance(seconds=seconds)
        assert await stage.harness.reap_once(overdue_seconds=20) == is_over
        await stage.harness.heartbeat(lease)
    assert (await stage.harness.attempts(lease.task_id))[0].state == "timed_out"


@check
async def the_time_limit_does_not_count_before_anybody_attached(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task(timeout_seconds=1))
    reservation = await stage.harness.reserve(task.task_id)
    assert reservation is not None
    await stage.clock.advance(seconds=25)
    assert await stage.harness.reap_once(overdue_seconds=20) == 0
    await stage.harness.attach(reservation)


@check
async def work_of_a_buried_worker_is_reaped_at_once(stage: Stage) -> None:
    await a_running_task(stage.harness)
    await a_running_task(stage.harness, worker="other")
    await stage.harness.retire("first")
    assert await stage.harness.reap_once() == 1


@check
async def reapers_do_not_wait_for_one_another(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        assert len(await held.fetch(sql("expired"), 10, [], 20.0, False, True)) == 1
        async with session.transaction():
            assert await session.fetch(sql("expired"), 10, [], 20.0, False, True) == []


@check
async def a_clock_that_is_not_believed_ends_nothing(stage: Stage) -> None:
    """Only what a dead worker held."""
    _, canceled, late, dead = (
        await a_running_task(stage.harness, worker="first"),
        await a_running_task(stage.harness, worker="first"),
        await a_running_task(stage.harness, worker="first", timeout_seconds=5),
        await a_running_task(stage.harness, worker="second"),
    )
    await stage.harness.cancel(canceled.task_id)
    await stage.clock.advance("1h")
    # Expired leases are not all there is: an attempt that beats may be past its time limit.
    await stage.value(
        "update holdfast.live set lease_expires_at = holdfast.instant() + interval '1h' where task_id = $1",
        late.claimed.task_id,
    )
    await stage.harness.retire("second")
    engine = stage.engine
    reaped = await reap_once(engine.database, engine.catalog, by_time=False)
    assert (reaped.count, await stage.state(dead.task_id)) == (1, "queued")
    assert await stage.harness.reap_once() == 3


@check
async def nodes_are_reaped_apart_from_other_tasks(stage: Stage) -> None:
    plain = await a_running_task(stage.harness)
    await stage.harness.runs.start(a_diamond())
    [node] = await stage.harness.claim(10)
    await stage.clock.advance(seconds=plain.seconds + 1)
    for is_node, lease in ((False, plain), (True, node)):
        async with stage.engine.database.transaction() as session:
            rows = await session.fetch(sql("expired"), 10, [], 20.0, is_node, True)
        assert [row["task_id"] for row in rows] == [lease.claimed.task_id]


@check
async def nothing_is_promoted_before_its_time(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_delayed_task(60))
    assert await stage.harness.reconcile_once() == 0
    await stage.clock.advance(seconds=61)
    assert await stage.harness.reconcile_once() == 1
    assert (await stage.harness.claim_one()).task_id == task.task_id


@check
async def promoting_does_not_wait_for_a_locked_task(stage: Stage) -> None:
    tasks = await stage.harness.enqueue_many(a_delayed_task(1), [{}, {}])
    await stage.clock.advance(seconds=2)
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        await held.fetch(sql("lock_tasks"), [int(tasks[0].task_id)])
        row = await session.fetchrow(sql("promote"), 10)
    assert row["promoted"] == 1
