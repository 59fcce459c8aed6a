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


async def stop(dispatcher):
    """Let what is out fail with the same fault."""
    await dispatcher.campaigns_once()
    await fail_all(dispatcher)
    await dispatcher.campaigns_once()


async def an_approved_one_that_stopped(dispatcher):
    """Started by Ann over five letters, approved by Bob, stopped by the same fault; more letters came since."""
    campaign_id = await start(dispatcher, await a_group(dispatcher, 5), canary=2, needs_approval=True)
    await approve_campaign(dispatcher.engine, 1, campaign_id, actor="bob")
    await stop(dispatcher)
    await a_group(dispatcher, 20)
    assert await state(dispatcher, campaign_id) == "stopped"
    return campaign_id


async def test_what_was_approved_once_is_approved_again_before_it_goes_on(dispatcher):
    engine, campaign_id = dispatcher.engine, await an_approved_one_that_stopped(dispatcher)
    view = await resume_campaign(engine, 1, campaign_id, actor="ann", reason="now really")
    assert (view.state, view.total, view.approved_by, view.resumed_by) == ("awaiting_approval", 27, None, "ann")
    assert await dispatcher.campaigns_once() == 0
    with pytest.raises(Conflict) as refused:
        await approve_campaign(engine, 1, campaign_id, actor="ann")
    assert (refused.value.code, "resumed by ann" in str(refused.value)) == ("approval_by_starter", True)
    assert (await approve_campaign(engine, 1, campaign_id, actor="bob")).state == "canary"
    assert await dispatcher.campaigns_once() == 2


async def test_who_approved_may_resume_and_who_started_may_approve_that(dispatcher):
    engine, campaign_id = dispatcher.engine, await an_approved_one_that_stopped(dispatcher)
    await resume_campaign(engine, 1, campaign_id, actor="bob", reason="now really")
    with pytest.raises(Conflict):
        await approve_campaign(engine, 1, campaign_id, actor="bob")
    assert (await approve_campaign(engine, 1, campaign_id, actor="ann")).state == "canary"


async def test_a_resumed_gate_waits_for_a_version_newer_than_the_last_that_failed(dispatcher):
    campaign_id = await start(dispatcher, await a_group_that_failed_on(dispatcher, "1.9"), needs_newer_version=True)
    engine = dispatcher.engine
    worker_id = await dispatcher.worker_id("second")
    await engine.database.fetch("update holdfast.worker set version = '2.0' where worker_id = $1", worker_id)
    await dispatcher.campaigns_once()
    for lease in await dispatcher.claim(10, worker="second"):
        await dispatcher.settle(lease, Failed(a.a_failure("connection reset by peer")))
    await dispatcher.campaigns_once()
    assert await state(dispatcher, campaign_id) == "stopped"
    view = await resume_campaign(engine, 1, campaign_id, actor="ann", reason="2.1 is on its way")
    assert (view.state, view.newer_than) == ("awaiting_version", "2.0")
    assert await dispatcher.campaigns_once() == 0
    await register(dispatcher, "2.1")
    assert await dispatcher.campaigns_once() == 3


async def test_a_resumed_campaign_knows_the_queues_of_what_came_since(dispatcher):
    campaign_id = await start(dispatcher, await a_group(dispatcher, 3), canary=1)
    await stop(dispatcher)
    await a_group(dispatcher, 2, queue="mail")
    await resume_campaign(dispatcher.engine, 1, campaign_id, actor="ann", reason="mended")
    await dispatcher.pause("default")
    assert (await show_campaign(dispatcher.engine, 1, campaign_id)).queues == ["default", "mail"]
    assert await dispatcher.campaigns_once() == 1
    assert await complete_all(dispatcher) == 1


async def test_a_group_with_a_campaign_has_one_however_many_there_were_since(dispatcher):
    fingerprint = await a_group(dispatcher, 3)
    campaign_id = await start(dispatcher, fingerprint)
    await dispatcher.engine.database.fetch(
        "insert into holdfast.campaign (tenant_id, fingerprint, name, reason, started_by, needs_approval, canary,"
        " at_once, state, upto_id, lane_ids, total, ended_at)"
        " select 1, n::text, '', 'x', 'ann', false, 1, 1, 'aborted', 0, '{}', 0, now() from generate_series(1, 60) n"
    )
    with pytest.raises(Conflict) as refused:
        await start(dispatcher, fingerprint)
    assert (refused.value.code, refused.value.fields["campaign_id"]) == ("campaign_exists", str(campaign_id))


@pytest.mark.parametrize(
    ("given", "said"),
    [("enough", "enough"), ("", "aborted; no reason was given"), (" ", "aborted; no reason was given")],
)
async def test_an_abort_leaves_a_reason_whether_it_was_given_one_or_not(dispatcher, given, said):
    campaign_id = await start(dispatcher, await a_group(dispatcher, 3))
    view = await abort_campaign(dispatcher.engine, 1, campaign_id, actor="ann", reason=given)
    rows = await list_audit(dispatcher.engine.database, 1)
    assert (view.note, rows[0].verb, rows[0].reason) == (said, "campaign.abort", said)


async def test_what_stopped_and_waits_again_may_be_aborted(dispatcher):
    campaign_id = await an_approved_one_that_stopped(dispatcher)
    await resume_campaign(dispatcher.engine, 1, campaign_id, actor="ann", reason="now really")
    assert (await abort_campaign(dispatcher.engine, 1, campaign_id, actor="ann", reason="no")).state == "aborted"
    assert not await dispatcher.engine.database.fetch(sql("resume_campaign"), campaign_id, 1, "ann", "again", None)
