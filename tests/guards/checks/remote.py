"""What guards the leases of workers that are elsewhere."""

from __future__ import annotations

import asyncio
import uuid

from tests.guards.checks.stage import Stage, check, handed_over, refuses, reserved

from holdfast.server.worker_api.remote_workers import RemoteWorkers
from holdfast.store.statements import sql
from holdfast.testing.factories import a_running_task


async def _exchange(stage: Stage, worker: str, held: list[int]) -> tuple[list[int], list[str]]:
    """What of `held` is lost to a worker, and what it is handed again."""
    worker_id = await stage.harness.worker_id(worker)
    done = await RemoteWorkers(stage.engine).exchange(worker_id, held=held, dones=[], queues=None, limit=0)
    return done.lost, [task.task_id for task in done.tasks]


@check
async def a_remote_beat_needs_attempt_token_and_a_running_task(stage: Stage) -> None:
    lease, reservation = await a_running_task(stage.harness), await reserved(stage)
    workers = RemoteWorkers(stage.engine)
    own = (lease.claimed.task_id, lease.attempt, lease.token)
    for beat in (
        (own[0], own[1] + 1, own[2]),
        (own[0], own[1], uuid.uuid4()),
        (reservation.task_id, reservation.attempt, reservation.lease_token),
    ):
        with refuses():
            await workers.heartbeat(*beat)
    assert not (await workers.heartbeat(*own)).cancel_requested


@check
async def a_remote_ledger_needs_attempt_token_and_a_running_task(stage: Stage) -> None:
    lease, reservation = await a_running_task(stage.harness), await reserved(stage)
    effect_store = RemoteWorkers(stage.engine).effect_store
    own = (lease.claimed.task_id, lease.attempt, lease.token)
    for held in (
        (own[0], own[1] + 1, own[2]),
        (own[0], own[1], uuid.uuid4()),
        (reservation.task_id, reservation.attempt, reservation.lease_token),
    ):
        with refuses():
            await effect_store.recall_steps(held)
    assert await effect_store.recall_steps(own) == []


@check
async def a_worker_elsewhere_that_left_stays_gone(stage: Stage) -> None:
    worker_id = await stage.harness.worker_id("first")
    workers = RemoteWorkers(stage.engine)
    assert (await workers.beat(worker_id, [], [], health="{}")).worker_state == "active"
    await workers.retire(worker_id)
    assert (await workers.beat(worker_id, [], [], health="{}")).worker_state is None


@check
async def a_remote_beat_revives_no_expired_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    with refuses():
        await RemoteWorkers(stage.engine).heartbeat(lease.claimed.task_id, lease.attempt, lease.token)


@check
async def an_exchange_renews_only_what_the_worker_holds(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    task_id = lease.claimed.task_id
    assert await _exchange(stage, "second", [task_id]) == ([task_id], [])
    assert await _exchange(stage, "first", [task_id]) == ([], [])


@check
async def an_exchange_revives_no_expired_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert await _exchange(stage, "first", [lease.claimed.task_id]) == ([lease.claimed.task_id], [])
    assert await _exchange(stage, "first", []) == ([], [])


@check
async def an_exchange_waits_for_nobody_to_renew(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    task_id = lease.claimed.task_id
    async with handed_over(stage, lease):
        asking = asyncio.ensure_future(_exchange(stage, "first", [task_id]))
        await stage.waits(asking)
        assert asking.done() and asking.result() == ([], [])
    await asking
    assert await _exchange(stage, "first", [task_id]) == ([task_id], [])


@check
async def a_remote_beat_waits_for_nobody(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    workers = RemoteWorkers(stage.engine)
    async with stage.engine.database.transaction() as holder:
        await holder.fetch(sql("lock_tasks"), [lease.claimed.task_id])
        beating = asyncio.ensure_future(workers.heartbeat(lease.claimed.task_id, lease.attempt, lease.token))
        await stage.waits(beating)
        assert beating.done() and beating.result().is_busy
    await beating


@check
async def an_exchange_that_waited_finds_nothing_it_lost(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with handed_over(stage, lease):
        asking = asyncio.ensure_future(_exchange(stage, "first", []))
        await stage.waits(asking)
    assert await asking == ([], [])


@check
async def an_exchange_finds_only_unnamed_tasks_of_its_worker(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    assert await _exchange(stage, "second", []) == ([], [])
    assert await _exchange(stage, "first", [lease.claimed.task_id]) == ([], [])
    assert await _exchange(stage, "first", []) == ([], [lease.task_id])
