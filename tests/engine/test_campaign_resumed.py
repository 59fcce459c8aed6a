"""A campaign that goes on: what it waited for once it waits for again, and what is said about who asked."""

from __future__ import annotations

import pytest
from tests.engine.test_campaign_gate import a_group_that_failed_on, register
from tests.engine.test_campaigns import a_group, complete_all, fail_all, start, state

from holdfast.core.tasks.outcome import Failed
from holdfast.engine.audit import list_audit
from holdfast.engine.campaigns.commands import abort_campaign, approve_campaign, resume_campaign, show_campaign
from holdfast.errors import Conflict
from holdfast.store.statements import sql
from holdfast.testing import factories as a


async def stop(harness):
    """Let what is out fail with the same fault."""
    await harness.campaigns_once()
    await fail_all(harness)
    await harness.campaigns_once()


async def an_approved_one_that_stopped(harness):
    """Started by Ann over five letters, approved by Bob, stopped by the same fault; more letters came since."""
    campaign_id = await start(harness, await a_group(harness, 5), canary=2, needs_approval=True)
    await approve_campaign(harness.engine, 1, campaign_id, actor="bob")
    await stop(harness)
    await a_group(harness, 20)
    assert await state(harness, campaign_id) == "stopped"
    return campaign_id


async def test_what_was_approved_once_is_approved_again_before_it_goes_on(harness):
    engine, campaign_id = harness.engine, await an_approved_one_that_stopped(harness)
    view = await resume_campaign(engine, 1, campaign_id, actor="ann", reason="now really")
    assert (view.state, view.total, view.approved_by, view.resumed_by) == ("awaiting_approval", 27, None, "ann")
    assert await harness.campaigns_once() == 0
    with pytest.raises(Conflict) as refused:
        await approve_campaign(engine, 1, campaign_id, actor="ann")
    assert (refused.value.code, "resumed by ann" in str(refused.value)) == ("approval_by_starter", True)
    assert (await approve_campaign(engine, 1, campaign_id, actor="bob")).state == "canary"
    assert await harness.campaigns_once() == 2


async def test_who_approved_may_resume_and_who_started_may_approve_that(harness):
    engine, campaign_id = harness.engine, await an_approved_one_that_stopped(harness)
    await resume_campaign(engine, 1, campaign_id, actor="bob", reason="now really")
    with pytest.raises(Conflict):
        await approve_campaign(engine, 1, campaign_id, actor="bob")
    assert (await approve_campaign(engine, 1, campaign_id, actor="ann")).state == "canary"


async def test_a_resumed_gate_waits_for_a_version_newer_than_the_last_that_failed(harness):
    campaign_id = await start(harness, await a_group_that_failed_on(harness, "1.9"), needs_newer_version=True)
    engine = harness.engine
    worker_id = await harness.worker_id("second")
    await engine.database.fetch("update holdfast.worker set version = '2.0' where worker_id = $1", worker_id)
    await harness.campaigns_once()
    for lease in await harness.claim(10, worker="second"):
        await harness.settle(lease, Failed(a.a_failure("connection reset by peer")))
    await harness.campaigns_once()
    assert await state(harness, campaign_id) == "stopped"
    view = await resume_campaign(engine, 1, campaign_id, actor="ann", reason="2.1 is on its way")
    assert (view.state, view.newer_than) == ("awaiting_version", "2.0")
    assert await harness.campaigns_once() == 0
    await register(harness, "2.1")
    assert await harness.campaigns_once() == 3


async def test_a_resumed_campaign_knows_the_queues_of_what_came_since(harness):
    campaign_id = await start(harness, await a_group(harness, 3), canary=1)
    await stop(harness)
    await a_group(harness, 2, queue="mail")
    await resume_campaign(harness.engine, 1, campaign_id, actor="ann", reason="mended")
    await harness.pause("default")
    assert (await show_campaign(harness.engine, 1, campaign_id)).queues == ["default", "mail"]
    assert await harness.campaigns_once() == 1
    assert await complete_all(harness) == 1


async def test_a_group_with_a_campaign_has_one_however_many_there_were_since(harness):
    fingerprint = await a_group(harness, 3)
    campaign_id = await start(harness, fingerprint)
    await harness.engine.database.fetch(
        "insert into holdfast.campaign (tenant_id, fingerprint, name, reason, started_by, needs_approval, canary,"
        " at_once, state, upto_id, lane_ids, total, ended_at)"
        " select 1, n::text, '', 'x', 'ann', false, 1, 1, 'aborted', 0, '{}', 0, now() from generate_series(1, 60) n"
    )
    with pytest.raises(Conflict) as refused:
        await start(harness, fingerprint)
    assert (refused.value.code, refused.value.fields["campaign_id"]) == ("campaign_exists", str(campaign_id))


@pytest.mark.parametrize(
    ("given", "said"),
    [("enough", "enough"), ("", "aborted; no reason was given"), (" ", "aborted; no reason was given")],
)
async def test_an_abort_leaves_a_reason_whether_it_was_given_one_or_not(harness, given, said):
    campaign_id = await start(harness, await a_group(harness, 3))
    view = await abort_campaign(harness.engine, 1, campaign_id, actor="ann", reason=given)
    rows = await list_audit(harness.engine.database, 1)
    assert (view.note, rows[0].verb, rows[0].reason) == (said, "campaign.abort", said)


async def test_what_stopped_and_waits_again_may_be_aborted(harness):
    campaign_id = await an_approved_one_that_stopped(harness)
    await resume_campaign(harness.engine, 1, campaign_id, actor="ann", reason="now really")
    assert (await abort_campaign(harness.engine, 1, campaign_id, actor="ann", reason="no")).state == "aborted"
    assert not await harness.engine.database.fetch(sql("resume_campaign"), campaign_id, 1, "ann", "again", None)
