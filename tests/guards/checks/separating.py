"""What guards tenants from one another where no wall stands: among workers on the database."""

from __future__ import annotations

import asyncio

from tests.guards.checks.stage import (
    OTHER_TENANT_ID,
    Stage,
    another_tenant,
    check,
    claimed_at_once,
    elsewhere,
    named_beside_a_claim,
    refuses,
    reserved,
)

from holdfast.core.tasks.selection import LaneHead
from holdfast.engine.identity.tenants import create_tenant, find_tenant, limit_tenant
from holdfast.errors import Conflict
from holdfast.testing.factories import a_task

WHO = {"actor": "me", "reason": ""}


@check
async def a_worker_claims_nothing_of_another_tenant(stage: Stage) -> None:
    other = await elsewhere(stage)
    task = await other.enqueue(a_task())
    stage.harness.know(a_task().action)
    assert await stage.harness.claim(1) == []
    claimer = await stage.harness._claimer("first")
    lane_id = await other.engine.catalog.lane_id(OTHER_TENANT_ID, "default", a_task().action)
    claimer._heads = [LaneHead(lane_id=lane_id, priority=5, task_id=0)]
    async with stage.engine.database.transaction() as session:
        assert await claimer._take(session, 1, {}) == []
    with refuses(Conflict):
        await stage.harness.claim_task(task.task_id)


@check
async def a_worker_of_another_tenant_attaches_nothing(stage: Stage) -> None:
    other, reservation = await elsewhere(stage), await reserved(stage)
    with refuses(Conflict):
        await other.attach(reservation)


@check
async def a_limited_tenant_starts_no_more_than_its_limit(stage: Stage) -> None:
    await stage.harness.enqueue_many(a_task(), [{}] * 4)
    await limit_tenant(stage.engine.database, "default", max_running=2, max_queued=None, **WHO)
    assert await claimed_at_once(stage) == (2, 0)


@check
async def a_named_task_of_a_limited_tenant_waits_for_other_counts(stage: Stage) -> None:
    *_, last = await stage.harness.enqueue_many(a_task(), [{}] * 2)
    await limit_tenant(stage.engine.database, "default", max_running=1, max_queued=None, **WHO)
    assert isinstance(await named_beside_a_claim(stage, last.task_id), Conflict)


@check
async def a_tenant_is_made_once(stage: Stage) -> None:
    await create_tenant(stage.engine.database, "acme", **WHO)
    with refuses(Conflict):
        await create_tenant(stage.engine.database, "acme", **WHO)


@check
async def a_limit_is_that_of_its_tenant(stage: Stage) -> None:
    await another_tenant(stage)
    await limit_tenant(stage.engine.database, "other", max_running=1, max_queued=1, **WHO)
    assert (await find_tenant(stage.engine.database, "default")).max_running is None


@check
async def a_tenants_limits_are_changed_one_after_another(stage: Stage) -> None:
    """What is recorded as before was so until the change."""
    async with stage.engine.database.transaction() as session:
        await session.fetch("select from holdfast.tenant where name = 'default' for no key update")
        await session.fetch("update holdfast.tenant set max_running = 7 where name = 'default'")
        limiting = asyncio.ensure_future(
            limit_tenant(stage.engine.database, "default", max_running=3, max_queued=None, **WHO)
        )
        await stage.waits(limiting)
    await limiting
    assert await stage.value("select before->>'max_running' from holdfast.audit") == "7"
