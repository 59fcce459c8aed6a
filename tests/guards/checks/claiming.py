"""What guards a claim: pauses, limits, drains, and other claimers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

from tests.guards.checks.stage import (
    Stage,
    check,
    claimed_at_once,
    handed_over,
    named_beside_a_claim,
    refuses,
)

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.lifecycle.tasks.claim import Claimer, held_by, held_task
from holdfast.engine.lifecycle.tasks.claim_named import claim_task
from holdfast.errors import Conflict
from holdfast.testing.factories import (
    a_running_task,
    a_task,
)


@check
async def a_queue_paused_since_the_plan_gives_nothing(stage: Stage) -> None:
    await stage.harness.enqueue_many(a_task(), [{}, {}])
    claimer: Claimer = await stage.harness._claimer("first")
    async with stage.engine.database.session() as session:
        assert len(await claimer.claim(session, 1, now=0.0)) == 1
        await stage.harness.pause()
        assert await claimer._take(session, 1, {}) == []


@check
async def a_worker_that_drains_claims_nothing(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task())
    await stage.harness.drain("first")
    assert await stage.harness.claim(1) == []
    with refuses(Conflict):
        await stage.harness.claim_task(task.task_id)


@check
async def queued_tasks_behind_a_running_one_are_claimed(stage: Stage) -> None:
    tasks = await stage.harness.enqueue_many(a_task(), [{}, {}, {}])
    await stage.harness.claim_task(tasks[1].task_id, worker="other")
    leases = await stage.harness.claim(2)
    assert [lease.task_id for lease in leases] == [tasks[0].task_id, tasks[2].task_id]


@check
async def claimers_do_not_wait_for_one_another(stage: Stage) -> None:
    await stage.harness.enqueue_many(a_task(), [{}, {}])
    first, second = await stage.harness._claimer("first"), await stage.harness._claimer("second")
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        taken = await first.claim(held, 1, now=0.0)
        also = await second.claim(session, 1, now=0.0)
        assert len({one.task_id for one in (*taken, *also)}) == 2


@check
async def a_worker_claims_by_name_only_what_it_serves(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task(queue="mail"))
    whole = (await stage.harness._claimer("first")).identity
    for identity in (replace(whole, actions=["shop.other"]), replace(whole, queues=["default"])):
        with refuses(Conflict) as refused:
            async with stage.engine.database.transaction() as session:
                await claim_task(session, identity, int(task.task_id))
        assert refused.value.fields["reason"] == "not_served"
    async with stage.engine.database.transaction() as session:
        await claim_task(session, replace(whole, queues=["mail"]), int(task.task_id))


@check
async def a_running_task_cannot_be_claimed_by_name(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    with refuses(Conflict):
        await stage.harness.claim_task(lease.task_id, worker="thief")
    await stage.harness.settle(lease, Completed(b"1"))


@check
async def a_task_of_a_paused_queue_cannot_be_claimed_by_name(stage: Stage) -> None:
    task = await stage.harness.enqueue(a_task())
    await stage.harness.pause()
    with refuses(Conflict):
        await stage.harness.claim_task(task.task_id)


async def _found_again(stage: Stage, worker: str, known: list[tuple[int, Any]]) -> list[int]:
    identity = (await stage.harness._claimer(worker)).identity
    async with stage.engine.database.session() as session:
        return [one.task_id for one in await held_by(session, identity, known)]


async def _has(stage: Stage, worker: str, task_id: int) -> bool:
    identity = (await stage.harness._claimer(worker)).identity
    async with stage.engine.database.session() as session:
        return await held_task(session, identity, task_id) is not None


@check
async def a_worker_finds_a_named_lease_of_its_own_alone(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    task_id = lease.claimed.task_id
    assert (await _has(stage, "first", task_id), await _has(stage, "other", task_id)) == (True, False)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert not await _has(stage, "first", task_id)


@check
async def a_worker_finds_only_its_own_leases_again(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    assert await _found_again(stage, "other", []) == []
    assert await _found_again(stage, "first", [(lease.claimed.task_id, lease.token)]) == []
    assert await _found_again(stage, "first", [(lease.claimed.task_id, uuid4())]) == [lease.claimed.task_id]
    assert await _found_again(stage, "first", [(lease.claimed.task_id + 1, lease.token)]) == [lease.claimed.task_id]
    assert await _found_again(stage, "first", []) == [lease.claimed.task_id]


@check
async def an_expired_lease_is_not_found_again(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    assert await _found_again(stage, "first", []) == []


@check
async def a_worker_that_waited_does_not_find_what_it_lost(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with handed_over(stage, lease):
        finding = asyncio.ensure_future(_found_again(stage, "first", []))
        await stage.waits(finding)
    assert await finding == []


@check
async def a_limited_queue_starts_no_more_than_its_limit(stage: Stage) -> None:
    await stage.harness.enqueue_many(a_task(), [{}] * 4)
    await stage.harness.limit(max_running=2)
    assert await claimed_at_once(stage) == (2, 0)


@check
async def a_named_task_of_a_limited_queue_waits_for_other_counts(stage: Stage) -> None:
    *_, last = await stage.harness.enqueue_many(a_task(), [{}] * 2)
    await stage.harness.limit(max_running=1)
    assert isinstance(await named_beside_a_claim(stage, last.task_id), Conflict)


async def _told(stage: Stage, claimed: list[Any]) -> int:
    """How much a worker takes that was told of a lane, and does not look before it tries."""
    claimer = await stage.harness._claimer("told")
    async with stage.engine.database.session() as session:
        claimer._usual = {claimed[0].claimed.lane_id: 5}
        claimer.expect([claimed[0].claimed.lane_id], now=0.0)
        return len(await claimer.claim_known(session, 5, now=0.0))


@check
async def a_limit_holds_for_who_was_told_of_a_lane(stage: Stage) -> None:
    leases = [await a_running_task(stage.harness)]
    await stage.harness.enqueue_many(a_task(), [{}] * 3)
    await stage.harness.limit(max_running=1)
    assert await _told(stage, leases) == 0
    await stage.harness.limit()
    assert await _told(stage, leases) == 3


@check
async def a_tenants_limit_holds_for_who_was_told_of_a_lane(stage: Stage) -> None:
    leases = [await a_running_task(stage.harness)]
    await stage.harness.enqueue_many(a_task(), [{}] * 3)
    await stage.value("update holdfast.tenant set max_running = 1")
    assert await _told(stage, leases) == 0
