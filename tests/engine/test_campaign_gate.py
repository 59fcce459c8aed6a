"""A campaign that waits for a newer worker: whose worker opens the gate, and what it has to be newer than."""

from __future__ import annotations

import pytest
from tests.engine.test_campaigns import a_group, start, state

from holdfast.engine.campaigns.commands import show_campaign
from holdfast.engine.campaigns.plan import plan_campaign
from holdfast.engine.maintenance.retention import retain_once
from holdfast.errors import Conflict
from holdfast.store.statements import sql
from holdfast.testing import factories as a


async def register(harness, version, *, tenant_id=1):
    await harness.engine.database.fetch(
        sql("register_worker"), "w", version, None, [a.ACTION], 1, "{}", tenant_id, None
    )


async def a_group_that_failed_on(harness, version):
    """Three letters of workers of a version; answers the fingerprint."""
    fingerprint = await a_group(harness, 3)
    await harness.engine.database.fetch("update holdfast.worker set version = $1", version)
    return fingerprint


async def test_a_gate_opens_with_a_newer_worker_and_not_with_an_older_one(harness):
    fingerprint = await a_group_that_failed_on(harness, "1.9")
    campaign_id = await start(harness, fingerprint, needs_newer_version=True)
    assert (await show_campaign(harness.engine, 1, campaign_id)).newer_than == "1.9"
    for version in ("1.9", "1.8.2"):
        await register(harness, version)
        assert await harness.campaigns_once() == 0
    assert await state(harness, campaign_id) == "awaiting_version"
    await register(harness, "1.10")
    assert await harness.campaigns_once() == 3


async def test_a_worker_of_another_tenant_opens_no_gate_and_is_not_shown(harness):
    fingerprint = await a_group_that_failed_on(harness, "1.9")
    campaign_id = await start(harness, fingerprint, needs_newer_version=True)
    await harness.engine.database.fetch("insert into holdfast.tenant (tenant_id, name) values (2, 'other')")
    await register(harness, "99", tenant_id=2)
    assert await harness.campaigns_once() == 0
    assert await state(harness, campaign_id) == "awaiting_version"
    plan = await plan_campaign(harness.engine, 1, fingerprint)
    assert (plan.present, plan.has_newer) == (["1.9"], False)


async def test_the_version_that_failed_is_known_as_long_as_its_failures_are(harness, clock):
    """Its workers left longer ago than history is kept; one of the same version is no newer one."""
    fingerprint = await a_group_that_failed_on(harness, "1.9")
    await harness.retire("first")
    await clock.advance("31d")
    await retain_once(harness.engine.database, days=30)
    await register(harness, "1.9")
    campaign_id = await start(harness, fingerprint, needs_newer_version=True)
    assert await harness.campaigns_once() == 0
    assert (await show_campaign(harness.engine, 1, campaign_id)).newer_than == "1.9"


async def test_a_gate_is_refused_where_nobody_knows_what_failed(harness):
    fingerprint = await a_group_that_failed_on(harness, "1.9")
    await harness.engine.database.fetch("delete from holdfast.worker")
    await register(harness, "1.10")
    assert not (await plan_campaign(harness.engine, 1, fingerprint)).has_newer
    with pytest.raises(Conflict) as refused:
        await start(harness, fingerprint, needs_newer_version=True)
    assert refused.value.code == "versions_unknown"
    assert await start(harness, fingerprint)
