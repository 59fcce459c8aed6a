"""What guards what people ask for: cancels, retries, keys and tenants."""

from __future__ import annotations

import asyncio
import uuid

from tests.guards.checks.stage import (
    OTHER_TENANT_ID,
    Stage,
    another_tenant,
    check,
    refuses,
    reserved,
)

from holdfast.core.tasks.outcome import Canceled
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.audit import list_audit, verify_audit
from holdfast.engine.lifecycle.tasks import cancel as cancel_verb
from holdfast.engine.lifecycle.tasks.claim_named import claim_task
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, enqueue, intern
from holdfast.engine.lifecycle.tasks.heartbeat import heartbeat
from holdfast.engine.lifecycle.tasks.reap import lose_workers_once
from holdfast.engine.lifecycle.tasks.retry import retry
from holdfast.engine.limits import queues
from holdfast.errors import Conflict, NotFound
from holdfast.server.worker_api.remote_workers import beat_workers
from holdfast.store.database import Database
from holdfast.store.statements import sql
from holdfast.testing.factories import (
    a_canceled_task,
    a_completed_task,
    a_delayed_task,
    a_failed_task,
    a_retrying_task,
    a_running_task,
    a_task,
)


@check
async def another_tenant_cannot_cancel(stage: Stage) -> None:
    await another_tenant(stage)
    task = await stage.harness.enqueue(a_task())
    done = await cancel_verb.cancel(
        stage.engine.database,
        stage.engine.catalog,
        OTHER_TENANT_ID,
        [int(task.task_id)],
        grace_seconds=1,
        reason="",
        actor="x",
    )
    assert not done.states and await stage.state(task.task_id) == "queued"


@check
async def a_running_task_is_asked_and_a_queued_one_ends(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    queued = await stage.harness.enqueue(a_task())
    assert await stage.harness.cancel(lease.task_id) == "canceling"
    assert await stage.harness.cancel(queued.task_id) == "canceled"
    assert (await stage.state(lease.task_id), await stage.state(queued.task_id)) == ("running", "canceled")
    await stage.harness.settle(lease, Canceled())


@check
async def a_cancel_that_waited_sees_who_holds_the_task_now(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task())
    identity = (await stage.harness._claimer("first")).identity
    async with stage.engine.database.transaction() as session:
        await claim_task(session, identity, int(task.task_id))
        canceling = asyncio.ensure_future(stage.harness.cancel(task.task_id))
        await stage.waits(canceling)
    assert await canceling == "canceling"


@check
async def a_reservation_that_is_canceled_leaves_its_attempt(stage: Stage) -> None:
    reservation, queued = await reserved(stage), await stage.harness.enqueue(a_task())
    for task_id in (str(reservation.task_id), queued.task_id):
        assert await stage.harness.cancel(task_id) == "canceled"
    assert [row.state for row in await stage.harness.attempts(str(reservation.task_id))] == ["canceled"]


@check
async def only_a_failed_task_is_retried(stage: Stage) -> None:
    delayed = await stage.harness.enqueue(a_delayed_task(60))
    for task_id in (
        delayed.task_id,
        await a_canceled_task(stage.harness),
        await a_completed_task(stage.harness),
        (await a_running_task(stage.harness)).task_id,
    ):
        before = await stage.state(task_id)
        with refuses(Conflict):
            await stage.harness.retry(task_id)
        assert await stage.state(task_id) == before
    assert await stage.harness.reconcile_once() == 0


@check
async def another_tenant_cannot_retry(stage: Stage) -> None:
    await another_tenant(stage)
    for task_id in (await a_retrying_task(stage.harness), await a_failed_task(stage.harness)):
        with refuses(NotFound, Conflict):
            await retry(
                stage.engine.database, stage.engine.catalog, OTHER_TENANT_ID, int(task_id), actor="x", reason=""
            )
        assert await stage.state(task_id) == "failed"


@check
async def a_key_stands_for_one_task(stage: Stage) -> None:
    tasks = [await stage.harness.enqueue(a_task(key="order-1")) for _ in range(2)]
    assert len({task.task_id for task in tasks}) == 1
    order = EnqueueOrder(tenant_id=1, queue="default", action="shop.charge", policy=RetryPolicy())
    interned = await intern(stage.engine.catalog, order)
    accepted = await enqueue(stage.engine, interned, [b"{}", b"{}"], keys=["twice", "twice"])
    assert len(set(accepted.task_ids)) == 1


@check
async def a_key_belongs_to_its_tenant(stage: Stage) -> None:
    await another_tenant(stage)
    task = await stage.harness.enqueue(a_task(key="order-1"))
    order = EnqueueOrder(tenant_id=OTHER_TENANT_ID, queue="default", action="shop.charge", policy=RetryPolicy())
    accepted = await enqueue(stage.engine, await intern(stage.engine.catalog, order), [b"{}"], keys=["order-1"])
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
        await stage.engine.database.fetch(sql("declare_action"), 1, "shop.charge", "twice", policy_id, "", None, 5)


@check
async def a_lane_belongs_to_its_tenant(stage: Stage) -> None:
    await another_tenant(stage)
    for tenant_id in (1, OTHER_TENANT_ID):
        await stage.engine.database.fetch(sql("ensure_queue"), tenant_id, "same")
    await stage.engine.database.fetch(sql("ensure_lane"), 1, "same", "shop.charge")
    assert await stage.value("select count(*) from holdfast.lane") == 1


@check
async def a_worker_that_left_stays_gone(stage: Stage) -> None:
    worker_id = await stage.harness.worker_id("first")
    await stage.harness.retire("first")
    left_at = await stage.value("select ended_at from holdfast.worker")
    await stage.clock.advance(seconds=100)
    await stage.harness.retire("first")
    await stage.harness.drain("first")
    async with stage.engine.database.session() as session:
        assert (await heartbeat(session, worker_id, {}, lease_seconds=10)).worker_state is None
    assert await lose_workers_once(stage.engine.database, silent_seconds=30) == 0
    row = await stage.engine.database.fetchrow("select state, ended_at from holdfast.worker")
    assert tuple(row) == ("gone", left_at)


@check
async def a_drained_worker_that_was_silent_drains_on(stage: Stage) -> None:
    """Also one elsewhere, which keeps nothing of it itself."""
    database, drained = stage.engine.database, await stage.harness.worker_id("first")
    active = await stage.harness.worker_id("second")
    await stage.harness.drain("first")
    for beat in (_beat_each, beat_workers):
        await stage.clock.advance(seconds=100)
        assert await lose_workers_once(database, silent_seconds=30) == 2
        assert await beat(database, [drained, active]) == {drained: "draining", active: "active"}


async def _beat_each(database: Database, worker_ids: list[int]) -> dict[int, str | None]:
    async with database.session() as session:
        return {one: (await heartbeat(session, one, {}, lease_seconds=10)).worker_state for one in worker_ids}


@check
async def only_silent_workers_are_shown_as_lost(stage: Stage) -> None:
    await stage.harness.worker_id("first")
    assert await lose_workers_once(stage.engine.database, silent_seconds=30) == 0
    await stage.clock.advance(seconds=31)
    assert await lose_workers_once(stage.engine.database, silent_seconds=30) == 1


@check
async def a_note_needs_the_current_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    reservation = await reserved(stage)
    own = (lease.claimed.task_id, lease.attempt, lease.token)
    forgeries = [
        (own[0], own[1] + 1, own[2]),
        (own[0], own[1], uuid.uuid4()),
        (reservation.task_id, reservation.attempt, reservation.lease_token),
    ]
    for task_id, attempt, token in (*forgeries, own):
        await stage.engine.database.fetch(sql("add_notes"), [task_id], [attempt], [token], ["log"], ["{}"])
    assert await stage.value("select count(*) from holdfast.note") == 1


@check
async def a_second_pause_keeps_the_first(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    assert await stage.harness.pause(reason="first")
    assert not await stage.harness.pause(reason="") and not await stage.harness.pause(reason="first")
    assert await stage.value("select paused_reason from holdfast.queue") == "first"
    assert await stage.harness.pause(reason="second")
    assert [await stage.harness.resume() for _ in range(2)] == [True, False]


@check
async def another_tenants_queue_is_left_alone(stage: Stage) -> None:
    await another_tenant(stage)
    await stage.harness.enqueue(a_task())
    await stage.engine.database.fetch(sql("ensure_queue"), OTHER_TENANT_ID, "default")
    options = {"actor": "x", "reason": ""}
    await queues.pause(stage.engine, OTHER_TENANT_ID, "default", **options)
    await queues.limit(stage.engine, OTHER_TENANT_ID, "default", max_running=1, starts_per_second=None, **options)
    mine = await stage.engine.database.fetchrow("select paused_at, max_running from holdfast.queue where tenant_id = 1")
    assert tuple(mine) == (None, None)
    await stage.harness.pause()
    await queues.resume(stage.engine, OTHER_TENANT_ID, "default", **options)
    assert await stage.value("select paused_at is not null from holdfast.queue where tenant_id = 1")


@check
async def another_tenants_queue_is_not_what_is_recorded(stage: Stage) -> None:
    await another_tenant(stage)
    await stage.engine.database.fetch(sql("ensure_queue"), OTHER_TENANT_ID, "default")
    await queues.limit(
        stage.engine, OTHER_TENANT_ID, "default", max_running=7, starts_per_second=None, actor="x", reason=""
    )
    await stage.harness.enqueue(a_task())
    await stage.harness.limit(max_running=3)
    (row,) = await list_audit(stage.engine.database, 1)
    assert (row.before["max_running"], row.after["max_running"]) == (None, 3)


@check
async def what_is_recorded_as_before_was_so_until_the_change(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    async with stage.engine.database.transaction() as session:
        await session.fetch(sql("limit_queue"), 1, "default", 3, None, "x", "")
        limiting = asyncio.ensure_future(stage.harness.limit(max_running=5))
        await stage.waits(limiting)
    await limiting
    (row,) = await list_audit(stage.engine.database, 1)
    assert (row.before["max_running"], row.after["max_running"]) == (3, 5)


async def _append(stage: Stage, tenant_id: int, follows: int) -> int:
    """Append a row as somebody who thinks the chain ends at `follows`; answers how many were appended."""
    at = await stage.value("select holdfast.instant()")
    row = ([follows + 1], ["x"], ["x"], ["1"], ["null"], ["null"], [bytes(32)], [bytes(32)])
    head = (tenant_id, follows, follows + 1, bytes(32), at, "x", "")
    return len(await stage.engine.database.fetch(sql("append_audit"), *head, *row))


@check
async def a_row_is_appended_only_behind_the_last(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    await stage.harness.pause()
    assert [await _append(stage, 1, follows) for follows in (0, 2)] == [0, 0]
    assert (await verify_audit(stage.engine.database, 1)).is_sound


@check
async def a_row_is_appended_to_its_own_chain(stage: Stage) -> None:
    await another_tenant(stage)
    await stage.harness.enqueue(a_task())
    await stage.harness.pause()
    assert await _append(stage, OTHER_TENANT_ID, 1) == 0


@check
async def starts_are_counted_only_where_they_are_limited(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    await stage.harness.limit(max_running=5)
    await stage.harness.claim_one()
    assert await stage.value("select starts_counted_at from holdfast.queue") is None
