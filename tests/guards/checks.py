"""What the guards in the SQL are for, as behaviour: each check passes on the real statements and fails without a guard.

A check drives the verbs as workers, reapers and callers do. None of them looks at SQL text.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec
import pytest

from holdfast.core.outcome import Canceled, Completed, Failed, Lost, Released
from holdfast.core.retry import RetryPolicy
from holdfast.dispatcher import cancel as cancel_verb
from holdfast.dispatcher import queues
from holdfast.dispatcher.attach import Reservation
from holdfast.dispatcher.claim import Claimer, claim_task, held_by
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.enqueue import Order, enqueue
from holdfast.dispatcher.heartbeat import heartbeat
from holdfast.dispatcher.leases import report_of
from holdfast.dispatcher.reap import lose_workers_once
from holdfast.dispatcher.retain import retain_once
from holdfast.dispatcher.settle import settle
from holdfast.errors import Conflict, LeaseLost, NotFound
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.statements import sql
from holdfast.testing.clock import Clock
from holdfast.testing.dispatcher import Dispatcher, Lease
from holdfast.testing.factories import (
    a_canceled_task,
    a_completed_task,
    a_delayed_task,
    a_failed_task,
    a_failure,
    a_retrying_task,
    a_running_task,
    a_task,
)

OTHER_TENANT_ID = 2
IMPATIENT = "set lock_timeout = '200ms'; set deadlock_timeout = '30ms'"


@dataclass(frozen=True, slots=True)
class Stage:
    """A database of the check's own and hands on its verbs."""

    engine: Engine
    dispatcher: Dispatcher
    clock: Clock

    async def value(self, query: str, *arguments: Any) -> Any:
        return await self.engine.database.fetchval(query, *arguments)

    async def state(self, task_id: str) -> str:
        return str((await self.dispatcher.task(task_id)).state)

    @asynccontextmanager
    async def impatient(self) -> Any:
        """A session of its own that would rather fail than wait for a lock."""
        session = await self.engine.database.connect()
        try:
            await session.execute(IMPATIENT)
            yield session
        finally:
            await session.close()

    async def waits(self, verb: asyncio.Future[Any]) -> None:
        """Until the verb waits for a lock somebody holds, or is over without."""
        while not verb.done():
            if await self.value(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            ):
                return


Check = Callable[[Stage], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


async def another_tenant(stage: Stage) -> None:
    await stage.engine.database.fetch(
        "insert into holdfast.tenant (tenant_id, name) values ($1, 'other') on conflict do nothing", OTHER_TENANT_ID
    )


def forged(lease: Lease, **changes: Any) -> Lease:
    """A lease somebody made up from what they know of a real one."""
    return msgspec.structs.replace(lease, claimed=msgspec.structs.replace(lease.claimed, **changes))


def refuses(*errors: type[Exception]) -> Any:
    return pytest.raises(errors or LeaseLost)


# Claiming


@check
async def a_queue_paused_since_the_plan_gives_nothing(stage: Stage) -> None:
    await stage.dispatcher.enqueue_many(a_task(), [{}, {}])
    claimer: Claimer = await stage.dispatcher._claimer("first")
    async with stage.engine.database.session() as session:
        assert len(await claimer.claim(session, 1, now=0.0)) == 1
        await stage.dispatcher.pause()
        assert await claimer._take(session, 1, {}) == []


@check
async def a_worker_that_drains_claims_nothing(stage: Stage) -> None:
    task = await stage.dispatcher.enqueue(a_task())
    await stage.dispatcher.drain("first")
    assert await stage.dispatcher.claim(1) == []
    with refuses(Conflict):
        await stage.dispatcher.claim_task(task.task_id)


@check
async def queued_tasks_behind_a_running_one_are_claimed(stage: Stage) -> None:
    tasks = await stage.dispatcher.enqueue_many(a_task(), [{}, {}, {}])
    await stage.dispatcher.claim_task(tasks[1].task_id, worker="other")
    leases = await stage.dispatcher.claim(2)
    assert [lease.task_id for lease in leases] == [tasks[0].task_id, tasks[2].task_id]


@check
async def claimers_do_not_wait_for_one_another(stage: Stage) -> None:
    await stage.dispatcher.enqueue_many(a_task(), [{}, {}])
    first, second = await stage.dispatcher._claimer("first"), await stage.dispatcher._claimer("second")
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        taken = await first.claim(held, 1, now=0.0)
        also = await second.claim(session, 1, now=0.0)
        assert len({one.task_id for one in (*taken, *also)}) == 2


@check
async def a_running_task_cannot_be_claimed_by_name(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    with refuses(Conflict):
        await stage.dispatcher.claim_task(lease.task_id, worker="thief")
    await stage.dispatcher.settle(lease, Completed(b"1"))


@check
async def a_task_of_a_paused_queue_cannot_be_claimed_by_name(stage: Stage) -> None:
    task = await stage.dispatcher.enqueue(a_task())
    await stage.dispatcher.pause()
    with refuses(Conflict):
        await stage.dispatcher.claim_task(task.task_id)


async def _found_again(stage: Stage, worker: str, known: list[Any]) -> list[int]:
    identity = (await stage.dispatcher._claimer(worker)).identity
    async with stage.engine.database.session() as session:
        return [one.task_id for one in await held_by(session, identity, known)]


@check
async def a_worker_finds_only_its_own_leases_again(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    assert await _found_again(stage, "other", []) == []
    assert await _found_again(stage, "first", [lease.token]) == []
    assert await _found_again(stage, "first", []) == [lease.claimed.task_id]


@check
async def an_expired_lease_is_not_found_again(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert await _found_again(stage, "first", []) == []


@check
async def a_worker_that_waited_does_not_find_what_it_lost(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    async with _handed_over(stage, lease):
        finding = asyncio.ensure_future(_found_again(stage, "first", []))
        await stage.waits(finding)
    assert await finding == []


@check
async def a_limited_queue_starts_no_more_than_its_limit(stage: Stage) -> None:
    await stage.dispatcher.enqueue_many(a_task(), [{}] * 4)
    await stage.dispatcher.limit(max_running=2)
    first, second = await stage.dispatcher._claimer("first"), await stage.dispatcher._claimer("second")
    async with stage.engine.database.transaction() as session:
        assert len(await first.claim(session, 2, now=0.0)) == 2

        async def claim_too() -> int:
            async with stage.engine.database.session() as other:
                return len(await second.claim(other, 2, now=0.0))

        claiming = asyncio.ensure_future(claim_too())
        await stage.waits(claiming)
    assert await claiming == 0


# Beating


@check
async def a_stale_token_renews_nothing(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.clock.advance(seconds=1)
    beat = await stage.dispatcher.heartbeat(forged(lease, lease_token=uuid.uuid4()))
    assert beat.lost == {lease.claimed.task_id}


@check
async def a_reservation_is_not_kept_alive_by_beats(stage: Stage) -> None:
    task = await stage.dispatcher.enqueue(a_task())
    reservation = await stage.dispatcher.reserve(task.task_id, launch_seconds=5)
    assert reservation is not None
    async with stage.engine.database.session() as session:
        tokens = {reservation.task_id: reservation.lease_token}
        beat = await heartbeat(session, await stage.dispatcher.worker_id(), tokens, lease_seconds=60)
    assert beat.lost == {reservation.task_id}


@check
async def an_expired_lease_is_never_revived(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert (await stage.dispatcher.heartbeat(lease)).lost == {lease.claimed.task_id}
    assert await stage.dispatcher.reap_once() == 1


@asynccontextmanager
async def _handed_over(stage: Stage, lease: Lease) -> Any:
    """Inside a transaction the lease ends and another worker gets the task; it commits when the block is left."""
    thief = (await stage.dispatcher._claimer("second")).identity
    async with stage.engine.database.transaction() as session:
        await settle(session, stage.engine.catalog, [report_of(lease.claimed, Released())])
        await claim_task(session, thief, lease.claimed.task_id)
        yield


@check
async def a_beat_that_waited_does_not_renew_the_next_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    async with _handed_over(stage, lease):
        beating = asyncio.ensure_future(stage.dispatcher.heartbeat(lease))
        await stage.waits(beating)
    assert (await beating).lost == {lease.claimed.task_id}


# Reserving and attaching


@check
async def a_running_task_cannot_be_reserved(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    assert await stage.dispatcher.reserve(lease.task_id) is None
    await stage.dispatcher.settle(lease, Completed(b"1"))


@check
async def a_task_of_a_paused_queue_cannot_be_reserved(stage: Stage) -> None:
    task = await stage.dispatcher.enqueue(a_task())
    await stage.dispatcher.pause()
    assert await stage.dispatcher.reserve(task.task_id) is None


async def _reserved(stage: Stage) -> Reservation:
    task = await stage.dispatcher.enqueue(a_task())
    reservation = await stage.dispatcher.reserve(task.task_id, launch_seconds=30)
    assert reservation is not None
    return reservation


@check
async def only_the_exact_attempt_can_be_attached(stage: Stage) -> None:
    reservation = await _reserved(stage)
    with refuses(Conflict):
        await stage.dispatcher.attach(msgspec.structs.replace(reservation, attempt=reservation.attempt + 1))
    await stage.dispatcher.attach(reservation)


@check
async def only_the_right_token_can_be_attached(stage: Stage) -> None:
    reservation = await _reserved(stage)
    with refuses(Conflict):
        await stage.dispatcher.attach(msgspec.structs.replace(reservation, lease_token=uuid.uuid4()))


@check
async def a_running_attempt_cannot_be_attached_again(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    copy = Reservation(lease.claimed.task_id, lease.attempt, lease.token)
    with refuses(Conflict):
        await stage.dispatcher.attach(copy, worker="second")


@check
async def a_reservation_past_its_time_cannot_be_attached(stage: Stage) -> None:
    reservation = await _reserved(stage)
    await stage.clock.advance(seconds=31)
    with refuses(Conflict):
        await stage.dispatcher.attach(reservation)


@check
async def a_worker_that_drains_attaches_nothing(stage: Stage) -> None:
    reservation = await _reserved(stage)
    await stage.dispatcher.drain("first")
    with refuses(Conflict):
        await stage.dispatcher.attach(reservation)


# Settling


@check
async def a_report_must_name_the_current_attempt(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    for outcome in (Completed(b"1"), Failed(a_failure())):
        with refuses():
            await stage.dispatcher.settle(forged(lease, attempt=lease.attempt + 1), outcome)
    assert await stage.state(lease.task_id) == "running"


@check
async def a_report_must_carry_the_current_token(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    for outcome in (Completed(b"1"), Failed(a_failure())):
        with refuses():
            await stage.dispatcher.settle(forged(lease, lease_token=uuid.uuid4()), outcome)
    assert await stage.state(lease.task_id) == "running"


@check
async def a_reservation_cannot_be_completed(stage: Stage) -> None:
    """Code that never attached has no result to give."""
    lease = await a_running_task(stage.dispatcher)
    reservation = await _reserved(stage)
    unattached = forged(
        lease,
        task_id=reservation.task_id,
        attempt=reservation.attempt,
        lease_token=reservation.lease_token,
    )
    with refuses():
        await stage.dispatcher.settle(unattached, Completed(b"1"))


@check
async def a_completion_that_waited_cannot_end_the_next_attempt(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    async with _handed_over(stage, lease):
        late = asyncio.ensure_future(stage.dispatcher.settle(lease, Completed(b'"late"')))
        await stage.waits(late)
    with refuses():
        await late
    assert (await stage.dispatcher.task(lease.task_id)).attempt == 2
    assert await stage.state(lease.task_id) == "running"


@check
async def a_failure_that_waited_cannot_end_the_next_attempt(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    async with _handed_over(stage, lease):
        late = asyncio.ensure_future(stage.dispatcher.settle(lease, Failed(a_failure("validation: late"))))
        await stage.waits(late)
    with refuses():
        await late
    assert await stage.state(lease.task_id) == "running"


@check
async def a_requested_cancel_wins_over_a_retry(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.dispatcher.cancel(lease.task_id)
    await stage.dispatcher.settle(lease, Failed(a_failure()))
    assert await stage.state(lease.task_id) == "canceled"


@check
async def a_repeated_report_answers_as_before_and_only_its_own(stage: Stage) -> None:
    done, failed = await a_running_task(stage.dispatcher), await a_running_task(stage.dispatcher, max_retries=0)
    for lease, outcome in ((done, Completed(b"1")), (failed, Failed(a_failure()))):
        await stage.dispatcher.settle(lease, outcome)
        await stage.dispatcher.settle(lease, outcome)
        for change in ({"lease_token": uuid.uuid4()}, {"attempt": 2}):
            with refuses():
                await stage.dispatcher.settle(forged(lease, **change), outcome)
    with refuses():
        await stage.dispatcher.settle(done, Failed(a_failure()))


@check
async def a_mixed_batch_and_a_beat_do_not_lock_each_other_out(stage: Stage) -> None:
    """The beat locks in order of ids; so must the two statements of a batch together."""
    first, second = await a_running_task(stage.dispatcher), await a_running_task(stage.dispatcher)
    ids = [second.claimed.task_id, first.claimed.task_id]
    async with stage.impatient() as session, stage.impatient() as heart:
        async with session.transaction():
            await session.fetch(sql("lock_tasks"), ids)
            await settle(session, stage.engine.catalog, [report_of(second.claimed, Completed(b"1"))])
            tokens = {lease.claimed.task_id: lease.token for lease in (first, second)}
            await heart.execute("set lock_timeout = '5s'")
            beating = asyncio.ensure_future(heartbeat(heart, first.worker_id, tokens, lease_seconds=10))
            await stage.waits(beating)
            await settle(session, stage.engine.catalog, [report_of(first.claimed, Failed(a_failure()))])
        assert (await beating).lost == set(ids)


# Reaping and promoting


@check
async def a_valid_lease_is_not_reaped(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.dispatcher.enqueue(a_task())
    assert await stage.dispatcher.reap_once() == 0
    await stage.dispatcher.settle(lease, Completed(b"1"))


@check
async def an_expired_lease_is_reaped_once(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert [await stage.dispatcher.reap_once() for _ in range(2)] == [1, 0]


@check
async def a_cancel_past_its_grace_is_forced(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.dispatcher.cancel(lease.task_id, grace_seconds=2)
    await stage.clock.advance(seconds=3)
    assert await stage.dispatcher.reap_once() == 1
    assert await stage.state(lease.task_id) == "canceled"


@check
async def work_of_a_buried_worker_is_reaped_at_once(stage: Stage) -> None:
    await a_running_task(stage.dispatcher)
    await a_running_task(stage.dispatcher, worker="other")
    await stage.dispatcher.retire("first")
    assert await stage.dispatcher.reap_once() == 1


@check
async def reapers_do_not_wait_for_one_another(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.clock.advance(seconds=lease.seconds + 1)
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        assert len(await held.fetch(sql("expired"), 10)) == 1
        async with session.transaction():
            assert await session.fetch(sql("expired"), 10) == []


@check
async def nothing_is_promoted_before_its_time(stage: Stage) -> None:
    task = await stage.dispatcher.enqueue(a_delayed_task(60))
    assert await stage.dispatcher.reconcile_once() == 0
    await stage.clock.advance(seconds=61)
    assert await stage.dispatcher.reconcile_once() == 1
    assert (await stage.dispatcher.claim_one()).task_id == task.task_id


@check
async def promoting_does_not_wait_for_a_locked_task(stage: Stage) -> None:
    tasks = await stage.dispatcher.enqueue_many(a_delayed_task(1), [{}, {}])
    await stage.clock.advance(seconds=2)
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        await held.fetch(sql("lock_tasks"), [int(tasks[0].task_id)])
        row = await session.fetchrow(sql("promote"), 10)
    assert row["promoted"] == 1


# Canceling and retrying


@check
async def another_tenant_cannot_cancel(stage: Stage) -> None:
    await another_tenant(stage)
    task = await stage.dispatcher.enqueue(a_task())
    done = await cancel_verb.cancel(
        stage.engine.database, OTHER_TENANT_ID, [int(task.task_id)], grace_seconds=1, reason="", actor="x"
    )
    assert not done.states and await stage.state(task.task_id) == "queued"


@check
async def a_running_task_is_asked_and_a_queued_one_ends(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    queued = await stage.dispatcher.enqueue(a_task())
    assert await stage.dispatcher.cancel(lease.task_id) == "canceling"
    assert await stage.dispatcher.cancel(queued.task_id) == "canceled"
    assert (await stage.state(lease.task_id), await stage.state(queued.task_id)) == ("running", "canceled")
    await stage.dispatcher.settle(lease, Canceled())


@check
async def a_cancel_that_waited_sees_who_holds_the_task_now(stage: Stage) -> None:
    task = await stage.dispatcher.enqueue(a_task())
    identity = (await stage.dispatcher._claimer("first")).identity
    async with stage.engine.database.transaction() as session:
        await claim_task(session, identity, int(task.task_id))
        canceling = asyncio.ensure_future(stage.dispatcher.cancel(task.task_id))
        await stage.waits(canceling)
    assert await canceling == "canceling"


@check
async def a_reservation_that_is_canceled_leaves_its_attempt(stage: Stage) -> None:
    reservation, queued = await _reserved(stage), await stage.dispatcher.enqueue(a_task())
    for task_id in (str(reservation.task_id), queued.task_id):
        assert await stage.dispatcher.cancel(task_id) == "canceled"
    assert [row.state for row in await stage.dispatcher.attempts(str(reservation.task_id))] == ["canceled"]


@check
async def only_a_failed_task_is_retried(stage: Stage) -> None:
    delayed = await stage.dispatcher.enqueue(a_delayed_task(60))
    for task_id in (
        delayed.task_id,
        await a_canceled_task(stage.dispatcher),
        await a_completed_task(stage.dispatcher),
        (await a_running_task(stage.dispatcher)).task_id,
    ):
        before = await stage.state(task_id)
        with refuses(Conflict):
            await stage.dispatcher.retry(task_id)
        assert await stage.state(task_id) == before
    assert await stage.dispatcher.reconcile_once() == 0


@check
async def another_tenant_cannot_retry(stage: Stage) -> None:
    await another_tenant(stage)
    for task_id in (await a_retrying_task(stage.dispatcher), await a_failed_task(stage.dispatcher)):
        with refuses(NotFound, Conflict):
            await cancel_verb.retry(stage.engine.database, OTHER_TENANT_ID, int(task_id), actor="x", reason="")
        assert await stage.state(task_id) == "failed"


# Keys, names and workers


@check
async def a_key_stands_for_one_task(stage: Stage) -> None:
    tasks = [await stage.dispatcher.enqueue(a_task(key="order-1")) for _ in range(2)]
    assert len({task.task_id for task in tasks}) == 1
    order = Order(tenant_id=1, queue="default", action="shop.charge", policy=RetryPolicy())
    accepted = await enqueue(
        stage.engine.database, stage.engine.catalog, order, [b"{}", b"{}"], keys=["twice", "twice"]
    )
    assert len(set(accepted.task_ids)) == 1


@check
async def a_key_belongs_to_its_tenant(stage: Stage) -> None:
    await another_tenant(stage)
    task = await stage.dispatcher.enqueue(a_task(key="order-1"))
    order = Order(tenant_id=OTHER_TENANT_ID, queue="default", action="shop.charge", policy=RetryPolicy())
    accepted = await enqueue(stage.engine.database, stage.engine.catalog, order, [b"{}"], keys=["order-1"])
    assert [task.task_id] != [str(task_id) for task_id in accepted.task_ids]
    assert len(accepted.task_ids) == 1


@check
async def names_are_interned_once_by_whoever_comes_second(stage: Stage) -> None:
    policy = (1, b"digest", 3, 3, None, "{}")
    for _ in range(2):
        await stage.engine.database.fetch(sql("ensure_queue"), 1, "twice")
        await stage.engine.database.fetch(sql("ensure_lane"), 1, "twice", "shop.charge")
        await stage.engine.database.fetch(sql("ensure_policy"), *policy)
        policy_id = await stage.value(sql("find_policy"), 1, b"digest")
        await stage.engine.database.fetch(sql("declare_action"), 1, "shop.charge", "twice", policy_id, "")


@check
async def a_lane_belongs_to_its_tenant(stage: Stage) -> None:
    await another_tenant(stage)
    for tenant_id in (1, OTHER_TENANT_ID):
        await stage.engine.database.fetch(sql("ensure_queue"), tenant_id, "same")
    await stage.engine.database.fetch(sql("ensure_lane"), 1, "same", "shop.charge")
    assert await stage.value("select count(*) from holdfast.lane") == 1


@check
async def a_worker_that_left_stays_gone(stage: Stage) -> None:
    worker_id = await stage.dispatcher.worker_id("first")
    await stage.dispatcher.retire("first")
    left_at = await stage.value("select ended_at from holdfast.worker")
    await stage.clock.advance(seconds=100)
    await stage.dispatcher.retire("first")
    await stage.dispatcher.drain("first")
    async with stage.engine.database.session() as session:
        assert (await heartbeat(session, worker_id, {}, lease_seconds=10)).worker_state is None
    assert await lose_workers_once(stage.engine.database, silent_seconds=30) == 0
    row = await stage.engine.database.fetchrow("select state, ended_at from holdfast.worker")
    assert tuple(row) == ("gone", left_at)


@check
async def only_silent_workers_are_shown_as_lost(stage: Stage) -> None:
    await stage.dispatcher.worker_id("first")
    assert await lose_workers_once(stage.engine.database, silent_seconds=30) == 0
    await stage.clock.advance(seconds=31)
    assert await lose_workers_once(stage.engine.database, silent_seconds=30) == 1


@check
async def a_note_needs_the_current_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    reservation = await _reserved(stage)
    own = (lease.claimed.task_id, lease.attempt, lease.token)
    forgeries = [
        (own[0], own[1] + 1, own[2]),
        (own[0], own[1], uuid.uuid4()),
        (reservation.task_id, reservation.attempt, reservation.lease_token),
    ]
    for task_id, attempt, token in (*forgeries, own):
        await stage.engine.database.fetch(sql("add_notes"), [task_id], [attempt], [token], ["log"], ["{}"])
    assert await stage.value("select count(*) from holdfast.note") == 1


# Queues


@check
async def a_second_pause_keeps_the_first(stage: Stage) -> None:
    await stage.dispatcher.enqueue(a_task())
    assert await stage.dispatcher.pause(reason="first")
    assert not await stage.dispatcher.pause(reason="second")
    assert await stage.value("select paused_reason from holdfast.queue") == "first"
    assert [await stage.dispatcher.resume() for _ in range(2)] == [True, False]


@check
async def another_tenants_queue_is_left_alone(stage: Stage) -> None:
    await another_tenant(stage)
    await stage.dispatcher.enqueue(a_task())
    await stage.engine.database.fetch(sql("ensure_queue"), OTHER_TENANT_ID, "default")
    options = {"actor": "x", "reason": ""}
    await queues.pause(stage.engine, OTHER_TENANT_ID, "default", **options)
    await queues.limit(stage.engine, OTHER_TENANT_ID, "default", max_running=1, starts_per_second=None, **options)
    mine = await stage.engine.database.fetchrow("select paused_at, max_running from holdfast.queue where tenant_id = 1")
    assert tuple(mine) == (None, None)
    await stage.dispatcher.pause()
    await queues.resume(stage.engine, OTHER_TENANT_ID, "default", **options)
    assert await stage.value("select paused_at is not null from holdfast.queue where tenant_id = 1")


@check
async def starts_are_counted_only_where_they_are_limited(stage: Stage) -> None:
    await stage.dispatcher.enqueue(a_task())
    await stage.dispatcher.limit(max_running=5)
    await stage.dispatcher.claim_one()
    assert await stage.value("select starts_counted_at from holdfast.queue") is None


# Retention


async def _day_after(stage: Stage, days: float = 3) -> None:
    await stage.clock.advance(f"{days:g}d")
    await retain_once(stage.engine.database, days=1)


@check
async def history_in_use_is_kept(stage: Stage) -> None:
    """A block with live, failed or canceled work stays, however old; one with completed work goes."""
    live = await stage.dispatcher.enqueue(a_task())
    for _ in range(3):
        await _day_after(stage)
    assert await stage.state(live.task_id) == "queued"
    await stage.dispatcher.settle(await stage.dispatcher.claim_one(), Failed(a_failure("validation: no")))
    for _ in range(2):
        await _day_after(stage)
    assert await stage.value("select count(*) from holdfast.body where task_id = $1", int(live.task_id)) == 1


@check
async def young_history_is_kept(stage: Stage) -> None:
    task_id = await a_completed_task(stage.dispatcher)
    events = await stage.value("select count(*) from holdfast.event")
    await retain_once(stage.engine.database, days=1)
    await stage.clock.advance("1d")
    await retain_once(stage.engine.database, days=5)
    assert await stage.state(task_id) == "completed"
    assert await stage.value("select count(*) from holdfast.event") == events


@check
async def workers_in_use_are_not_forgotten(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.dispatcher.worker_id("idle")
    await stage.dispatcher.worker_id("left")
    await stage.dispatcher.retire("left")
    await retain_once(stage.engine.database, days=1)
    assert await stage.value("select count(*) from holdfast.worker") == 3
    await stage.dispatcher.retire("first")
    await _day_after(stage)
    kept = await stage.engine.database.fetch("select name from holdfast.worker order by 1")
    assert [row["name"] for row in kept] == ["first", "idle"]
    assert lease.worker_id


@check
async def ids_never_go_back(stage: Stage) -> None:
    await stage.dispatcher.enqueue(a_task())
    await _day_after(stage)
    tasks = []
    for _ in range(3):
        tasks.append(int((await stage.dispatcher.enqueue(a_task())).task_id))
        await retain_once(stage.engine.database, days=1)
    assert tasks == sorted(set(tasks))


@check
async def one_process_at_a_time_changes_blocks(stage: Stage) -> None:
    await stage.clock.advance("2d")
    async with stage.engine.database.transaction() as held:
        await held.fetch(sql("lock_blocks"))
        await retain_once(stage.engine.database, days=1)
    assert await stage.value("select count(*) from holdfast.block") == 1


# Budgets and decisions


@check
async def a_spent_budget_ends_the_task(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher, max_retries=0)
    await stage.dispatcher.settle(lease, Failed(a_failure()))
    lost = await a_running_task(stage.dispatcher, max_losses=0)
    await stage.dispatcher.settle(lost, Lost(a_failure()))
    assert [await stage.state(one.task_id) for one in (lease, lost)] == ["failed", "failed"]
    assert await stage.value("select count(*) from holdfast.ended") == 2


@check
async def losses_and_failures_have_budgets_of_their_own(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher, max_retries=0, max_losses=1)
    await stage.dispatcher.settle(lease, Lost(a_failure()))
    assert (await stage.dispatcher.task(lease.task_id)).loss_count == 1
    again = await stage.dispatcher.claim_task(lease.task_id)
    await stage.dispatcher.settle(again, Failed(a_failure()))
    assert await stage.value("select count(*) from holdfast.ended") == 1


@check
async def what_cannot_get_better_is_not_retried(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.dispatcher.settle(lease, Failed(a_failure("validation: no such customer")))
    assert await stage.value("select count(*) from holdfast.ended") == 1


@check
async def a_retry_waits_for_its_backoff(stage: Stage) -> None:
    await a_retrying_task(stage.dispatcher)
    assert await stage.dispatcher.claim(1) == []
    assert await stage.dispatcher.reconcile_once() == 0


@check
async def a_first_loss_is_retried_at_once(stage: Stage) -> None:
    lease = await a_running_task(stage.dispatcher)
    await stage.dispatcher.settle(lease, Lost(a_failure()))
    assert len(await stage.dispatcher.claim(1)) == 1


async def _refused_by_schema(stage: Stage, change: str, where: str = "state = 'q'") -> None:
    await stage.dispatcher.enqueue(a_task())
    await a_running_task(stage.dispatcher)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch(f"update holdfast.live set {change} where {where}")


@check
async def the_schema_refuses_unknown_states(stage: Stage) -> None:
    await _refused_by_schema(stage, "state = 'z'")


@check
async def the_schema_refuses_a_lease_on_idle_work(stage: Stage) -> None:
    await _refused_by_schema(stage, "lease_token = gen_random_uuid()")


@check
async def the_schema_refuses_running_work_without_a_worker(stage: Stage) -> None:
    await _refused_by_schema(stage, "worker_id = null", "state = 'r'")


@check
async def the_schema_refuses_waiting_without_an_end(stage: Stage) -> None:
    await _refused_by_schema(stage, "state = 'w'")


@check
async def the_schema_refuses_an_overdrawn_budget(stage: Stage) -> None:
    await _refused_by_schema(stage, "retries = max_retries + 1")


@check
async def the_schema_refuses_an_unknown_priority(stage: Stage) -> None:
    await _refused_by_schema(stage, "priority = 10")


@check
async def the_schema_refuses_a_retry_that_is_no_decision(stage: Stage) -> None:
    await a_failed_task(stage.dispatcher)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.failure set retry_at = holdfast.instant()")
    assert DEFAULT_TENANT_ID == 1
