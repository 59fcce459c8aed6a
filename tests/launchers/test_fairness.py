"""Tenants take turns at the slots of a launcher: who has much to do leaves the others their share."""

from __future__ import annotations

from tests.launchers.conftest import ACTION

from holdfast.core.limits.breaker import Breaker
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.identity.tenants import create_tenant
from holdfast.engine.launching import launch as verbs
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_task


async def a_tenant(engine, name):
    """A tenant of this name with the launched action declared."""
    tenant = await create_tenant(engine.database, name, actor="anna", reason="")
    await engine.catalog.declare(tenant.tenant_id, ACTION, "default", RetryPolicy(), "", launcher="test")
    return EngineHarness(engine.of(tenant.tenant_id))


async def test_tenants_take_turns_whatever_their_priorities(engine, queue_up):
    await queue_up(3, priority=0)
    beta = await a_tenant(engine, "beta")
    for _ in range(2):
        await beta.enqueue(a_task(action=ACTION, priority=9))
    found = await verbs.find_launchable(engine.database)
    assert [one.tenant for one in found] == ["default", "beta", "default", "beta", "default"]


async def test_a_tenant_that_holds_fewer_slots_comes_first(engine, launching, queue_up):
    await queue_up(5)
    assert await launching.launch_once() == 2
    beta = await a_tenant(engine, "beta")
    for _ in range(3):
        await beta.enqueue(a_task(action=ACTION))
    found = await verbs.find_launchable(engine.database)
    assert [one.tenant for one in found] == ["beta", "beta", "default", "beta", "default", "default"]


async def test_what_an_open_breaker_holds_back_takes_nobodys_turn(engine, harness, clock, queue_up):
    await clock.freeze()
    await queue_up(2)
    await harness.guard(ACTION, breaker=Breaker())
    await engine.database.fetch(
        "update holdfast.breaker set state = 'o', trial_at = holdfast.instant() + interval '30s'"
    )
    assert await verbs.find_launchable(engine.database) == []
    await clock.advance("30s")
    assert len(await verbs.find_launchable(engine.database)) == 2
