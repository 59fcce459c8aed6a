"""A campaign over a group of dead letters: canary, ramp, stop, resume, and who may say so."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.core.dead_letters.campaign import PRIORITY
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.campaigns.advance import campaigns_once
from holdfast.engine.campaigns.commands import (
    abort_campaign,
    approve_campaign,
    resume_campaign,
    show_campaign,
    start_campaign,
)
from holdfast.engine.campaigns.plan import plan_campaign
from holdfast.engine.identity.tokens import create_token
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.dead_letters.commands import ignore
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.queries.dead_letters import dead_groups
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.statements import sql
from holdfast.testing import factories as a


async def a_group(harness, count, **options):
    """Tasks that failed for good in the same way; answers the fingerprint."""
    await harness.enqueue_many(a.a_task(max_retries=0, **options), [{"n": n} for n in range(count)])
    await fail_all(harness)
    return (await dead_groups(harness.engine.database, 1))[0].fingerprint


async def fail_all(harness, message="connection reset by peer"):
    for lease in await harness.claim(1000):
        await harness.settle(lease, Failed(a.a_failure(message)))


async def complete_all(harness):
    leases = await harness.claim(1000)
    for lease in leases:
        await harness.settle(lease, Completed(b"1"))
    return len(leases)


async def start(harness, fingerprint, **options):
    view = await start_campaign(harness.engine, 1, fingerprint, **{"actor": "ann", "reason": "fixed", **options})
    return int(view.campaign_id)


async def state(harness, campaign_id):
    return (await show_campaign(harness.engine, 1, campaign_id)).state


async def test_a_campaign_from_canary_to_the_end(harness):
    campaign_id = await start(harness, await a_group(harness, 40), canary=3)
    released, seen = [], []
    while await state(harness, campaign_id) != "completed":
        released.append(await harness.campaigns_once())
        seen.append(await state(harness, campaign_id))
        await complete_all(harness)
    assert released == [3, 3, 6, 12, 16, 0]
    assert seen == ["canary", "ramp", "ramp", "ramp", "ramp", "completed"]
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.total, view.released, view.succeeded, view.outstanding) == (40, 40, 40, 0)
    assert not await dead_groups(harness.engine.database, 1)


async def test_a_campaign_rests_for_as_long_as_its_pass_took_and_longer(harness, clock):
    await start(harness, await a_group(harness, 40), canary=3)

    async def one_pass():
        engine = harness.engine
        moved = await campaigns_once(engine.database, engine.catalog, rest=1_000_000.0)
        await complete_all(harness)
        return moved.released, moved.under_way

    assert await one_pass() == (3, 1)
    # Still under way: whoever asks comes back soon, and finds that it rests.
    assert await one_pass() == (0, 1)
    await clock.advance("365d")
    assert await one_pass() == (3, 1)


async def test_the_canary_is_waited_for(harness):
    await start(harness, await a_group(harness, 10), canary=2)
    assert [await harness.campaigns_once() for _ in range(3)] == [2, 0, 0]


async def test_what_was_dropped_is_no_part_of_the_canary(harness):
    """Left by somebody while it was out, or not able to go: it says nothing, and another takes its place."""
    campaign_id = await start(harness, await a_group(harness, 5), canary=2)
    assert await harness.campaigns_once() == 2
    for lease in await harness.claim(2):
        await ignore(harness.engine, 1, task_id=int(lease.task_id), actor="bob", reason="mine")
    assert await harness.campaigns_once() == 2
    await harness.engine.database.fetch(sql("note_released"), campaign_id, 1, [999], [999], [False], 0, False)
    assert await complete_all(harness) == 2
    assert (await harness.campaigns_once(), await state(harness, campaign_id)) == (1, "ramp")


async def test_no_more_are_out_at_once_than_allowed(harness):
    campaign_id = await start(harness, await a_group(harness, 30), canary=2, at_once=5)
    while await state(harness, campaign_id) != "completed":
        await harness.campaigns_once()
        out = await harness.engine.database.fetchval("select count(*) from holdfast.live")
        assert out <= 5
        await complete_all(harness)


async def test_the_same_fault_stops_it_and_parks_what_returned(harness):
    campaign_id = await start(harness, await a_group(harness, 10), canary=2)
    await harness.campaigns_once()
    await fail_all(harness)
    assert await harness.campaigns_once() == 0
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.state, view.returned, view.note) == ("stopped", 2, "the same failure came back 2 times")
    [group] = await dead_groups(harness.engine.database, 1)
    assert (group.count, group.retrying) == (10, 0)
    assert [await harness.campaigns_once(), await harness.sweep_once()] == [0, 0]


async def test_the_sweep_never_re_drives_behind_a_campaigns_back(harness, clock):
    await start(harness, await a_group(harness, 4), canary=4)
    await harness.campaigns_once()
    await fail_all(harness)
    await clock.advance(seconds=600)
    assert await harness.sweep_once() == 0


@pytest.mark.parametrize("verb", ["redrive", "campaign"])
async def test_a_letter_that_a_campaign_parked_goes_when_it_is_asked_for_again(harness, verb):
    """Its worker opens no letters: the old one still stands for the task."""
    fingerprint = await a_group(harness, 1)
    campaign_id = await start(harness, fingerprint)
    await harness.campaigns_once()
    lease = await harness.claim_one()
    engine = harness.engine
    async with engine.database.transaction() as session:
        report = report_of(lease.claimed, Failed(a.a_failure()))
        await settle(session, engine.catalog, [msgspec.structs.replace(report, opens_letter=False)])
    await harness.campaigns_once()
    assert [one.state for one in await harness.letters(lease.task_id)] == ["ignored"]
    if verb == "campaign":
        await abort_campaign(engine, 1, campaign_id, actor="ann", reason="the fix was not in")
        await start(harness, fingerprint)
        assert await harness.campaigns_once() == 1
    else:
        await harness.request(fingerprint)
        assert await harness.sweep_once() == 1
    assert (await harness.task(lease.task_id)).state == "queued"


async def test_a_few_faults_of_another_kind_do_not_stop_it(harness):
    campaign_id = await start(harness, await a_group(harness, 20), canary=5)
    await harness.campaigns_once()
    first, *others = await harness.claim(10)
    await harness.settle(first, Failed(a.a_failure("validation: another")))
    for lease in others:
        await harness.settle(lease, Completed(b"1"))
    await harness.campaigns_once()
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.state, view.failed, view.succeeded) == ("ramp", 1, 4)


async def test_a_resumed_campaign_begins_with_a_canary_and_takes_in_what_came_back(harness):
    campaign_id = await start(harness, await a_group(harness, 6), canary=2)
    await harness.campaigns_once()
    await fail_all(harness)
    await harness.campaigns_once()
    await resume_campaign(harness.engine, 1, campaign_id, actor="bob", reason="now really fixed")
    while await state(harness, campaign_id) == "canary" or await state(harness, campaign_id) == "ramp":
        await harness.campaigns_once()
        await complete_all(harness)
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.state, view.leg, view.total, view.succeeded, view.returned) == ("completed", 2, 8, 6, 2)
    assert not await dead_groups(harness.engine.database, 1)


async def test_what_the_last_leg_left_out_does_not_stop_the_next(harness):
    campaign_id = await start(harness, await a_group(harness, 10), canary=2)
    await harness.campaigns_once()
    first, late = await harness.claim(2)
    await harness.settle(first, Failed(a.a_failure()))
    await harness.campaigns_once()
    await resume_campaign(harness.engine, 1, campaign_id, actor="bob", reason="fixed")
    await harness.settle(late, Failed(a.a_failure()))
    assert await harness.campaigns_once() == 2
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.state, view.returned) == ("canary", 2)


async def test_an_aborted_campaign_releases_nothing_more_and_counts_what_is_out(harness):
    campaign_id = await start(harness, await a_group(harness, 10), canary=2)
    await harness.campaigns_once()
    await abort_campaign(harness.engine, 1, campaign_id, actor="ann", reason="enough")
    await complete_all(harness)
    assert await harness.campaigns_once() == 0
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.state, view.succeeded, view.outstanding, view.note) == ("aborted", 2, 0, "enough")
    assert (await dead_groups(harness.engine.database, 1))[0].count == 8


async def test_an_approval_needs_other_eyes(harness):
    campaign_id = await start(harness, await a_group(harness, 3), needs_approval=True)
    assert await harness.campaigns_once() == 0
    with pytest.raises(Conflict) as refused:
        await approve_campaign(harness.engine, 1, campaign_id, actor="ann")
    assert refused.value.code == "approval_by_starter"
    await approve_campaign(harness.engine, 1, campaign_id, actor="bob")
    assert await harness.campaigns_once() == 3
    with pytest.raises(Conflict):
        await approve_campaign(harness.engine, 1, campaign_id, actor="bob")


TOKENS = {
    "its own second token": ("oidc:ann", {"second": "oidc:ann"}, "token:second"),
    "a token that its token created": ("oidc:ann", {"first": "oidc:ann", "second": "token:first"}, "token:second"),
    "two tokens of one account": ("token:first", {"first": "oidc:ann", "second": "oidc:ann"}, "token:second"),
    "the account behind the token": ("token:first", {"first": "oidc:ann"}, "oidc:ann"),
    "a token of the command line's user": ("cli:ann", {"second": "cli:ann"}, "token:second"),
}


@pytest.mark.parametrize("which", TOKENS)
async def test_a_second_token_is_not_a_second_person(harness, which):
    starter, tokens, approver = TOKENS[which]
    for name, creator in tokens.items():
        await create_token(harness.engine.database, 1, name=name, role="admin", actor=creator)
    campaign_id = await start(harness, await a_group(harness, 3), needs_approval=True, actor=starter)
    own = harness.engine.of(1)
    with pytest.raises(Conflict) as refused:
        await approve_campaign(own, 1, campaign_id, actor=approver)
    assert refused.value.code == "approval_by_starter"
    await approve_campaign(own, 1, campaign_id, actor="oidc:bob")


async def test_tokens_that_an_administrator_made_for_two_people_are_two_people(harness):
    for name in ("ann", "bob"):
        await create_token(harness.engine.database, 1, name=name, role="admin", actor="cli:root")
    campaign_id = await start(harness, await a_group(harness, 3), needs_approval=True, actor="token:ann")
    assert (await approve_campaign(harness.engine.of(1), 1, campaign_id, actor="token:bob")).approved_by == "token:bob"


async def test_a_paused_queue_is_waited_for(harness):
    campaign_id = await start(harness, await a_group(harness, 3))
    await harness.pause("default")
    assert await harness.campaigns_once() == 0
    assert "paused" in (await show_campaign(harness.engine, 1, campaign_id)).note
    await harness.resume("default")
    assert await harness.campaigns_once() == 3


async def test_a_paused_queue_does_not_hold_back_letters_of_another(harness):
    """Also when the oldest letters, as many as may go at once, all wait for it."""
    fingerprint = await a_group(harness, 4)
    assert await a_group(harness, 3, queue="mail") == fingerprint
    campaign_id = await start(harness, fingerprint, canary=2, at_once=2)
    await harness.pause("default")
    assert await harness.campaigns_once() == 2
    assert "paused" not in (await show_campaign(harness.engine, 1, campaign_id)).note
    await complete_all(harness)
    assert await harness.campaigns_once() == 1
    await complete_all(harness)
    assert await harness.campaigns_once() == 0
    assert "paused" in (await show_campaign(harness.engine, 1, campaign_id)).note


async def test_the_limits_of_the_queue_pace_it(harness):
    await start(harness, await a_group(harness, 8), canary=8)
    await harness.limit("default", max_running=2)
    await harness.campaigns_once()
    assert len(await harness.claim(100)) == 2


async def test_re_driven_tasks_come_after_other_work(harness):
    await start(harness, await a_group(harness, 3))
    await harness.campaigns_once()
    fresh = await harness.enqueue(a.a_task())
    assert (await harness.claim_one()).task_id == fresh.task_id
    priorities = await harness.engine.database.fetch("select priority from holdfast.live where state = 'q'")
    assert {row[0] for row in priorities} == {PRIORITY}


async def test_a_task_re_driven_by_hand_has_its_own_priority_again(harness):
    await start(harness, await a_group(harness, 1, priority=2))
    await harness.campaigns_once()
    await fail_all(harness)
    [group] = await dead_groups(harness.engine.database, 1)
    await harness.redrive(group.task_id)
    assert (await harness.task(group.task_id)).priority == 2


async def test_one_campaign_at_a_time_works_on_a_group(harness):
    fingerprint = await a_group(harness, 3)
    campaign_id = await start(harness, fingerprint)
    with pytest.raises(Conflict) as refused:
        await start(harness, fingerprint)
    assert refused.value.fields["campaign_id"] == str(campaign_id)
    await abort_campaign(harness.engine, 1, campaign_id, actor="ann", reason="")
    assert await start(harness, fingerprint) != campaign_id


async def test_many_processes_move_a_campaign_as_one_does(harness):
    campaign_id = await start(harness, await a_group(harness, 20), canary=4)
    engine = harness.engine
    while await state(harness, campaign_id) != "completed":
        await asyncio.gather(*(campaigns_once(engine.database, engine.catalog) for _ in range(4)))
        await complete_all(harness)
    view = await show_campaign(engine, 1, campaign_id)
    assert (view.released, view.succeeded) == (20, 20)
    assert await engine.database.fetchval("select max(generation) from holdfast.attempt") == 2


async def test_what_somebody_else_re_drove_does_not_keep_it_waiting(harness):
    fingerprint = await a_group(harness, 3)
    campaign_id = await start(harness, fingerprint, canary=1)
    for group in await dead_groups(harness.engine.database, 1):
        await harness.redrive(group.task_id)
    await complete_all(harness)
    for _ in range(5):
        await harness.campaigns_once()
        await complete_all(harness)
    assert await state(harness, campaign_id) == "completed"


@pytest.mark.breaks_invariants
async def test_a_dry_run_names_counts_versions_limits_and_effects(harness):
    fingerprint = await a_group(harness, 4, queue="mail")
    await harness.limit("mail", max_running=2)

    await harness.engine.database.fetch(
        "insert into holdfast.effect (key, task_id, tenant_id, attempt, ordinal, generation, state, lease_token, name,"
        " digest, receipt, answered_at) select 'k' || task_id, task_id, 1, 1, 0, 1,"
        " (case when task_id % 4 = 0 then 'u' else 'd' end)::\"char\", gen_random_uuid(), 'smtp.send', '',"
        " case when task_id % 4 <> 0 then 'null'::bytea end, case when task_id % 4 <> 0 then now() end"
        " from holdfast.ended"
    )
    plan = await plan_campaign(harness.engine, 1, fingerprint)
    [lane] = plan.lanes
    assert (plan.tasks, lane.queue, lane.max_running, lane.nodes) == (4, "mail", 2, 0)
    assert (plan.failed_on, plan.has_newer) == ([""], False)
    assert [(one.name, one.receipts, one.unknown) for one in plan.effects] == [("smtp.send", 3, 1)]
    assert await harness.engine.database.fetchval("select count(*) from holdfast.campaign") == 0


async def test_a_dry_run_counts_to_a_bound_and_says_so(harness, monkeypatch):
    monkeypatch.setattr("holdfast.engine.campaigns.plan.LETTERS_MAX", 3)
    fingerprint = await a_group(harness, 4)
    plan = await plan_campaign(harness.engine, 1, fingerprint)
    assert (plan.tasks, sum(lane.tasks for lane in plan.lanes), plan.is_partial) == (3, 3, True)
    assert plan.last_seen == await harness.engine.database.fetchval("select max(opened_at) from holdfast.dead_letter")

    monkeypatch.setattr("holdfast.engine.campaigns.plan.LETTERS_MAX", 5)
    plan = await plan_campaign(harness.engine, 1, fingerprint)
    assert (plan.tasks, plan.is_partial) == (4, False)


@pytest.mark.breaks_invariants
async def test_a_dry_run_looks_on_behind_letters_that_cannot_go(harness, monkeypatch):
    monkeypatch.setattr("holdfast.engine.campaigns.plan.LETTERS_MAX", 2)
    fingerprint = await a_group(harness, 5)
    await harness.engine.database.fetch(
        "update holdfast.dead_letter set recovery_options = '{}' where dead_letter_id in"
        " (select dead_letter_id from holdfast.dead_letter order by 1 limit 4)"
    )
    plan = await plan_campaign(harness.engine, 1, fingerprint)
    assert (plan.tasks, plan.is_partial) == (1, False)


@pytest.mark.parametrize(
    ("options", "code"),
    [({"reason": " "}, "reason_required"), ({"canary": 0}, "invalid_campaign"), ({"at_once": 2}, "invalid_campaign")],
)
async def test_a_campaign_without_sense_is_refused(harness, options, code):
    fingerprint = await a_group(harness, 1)
    with pytest.raises(Invalid) as refused:
        await start(harness, fingerprint, **options)
    assert refused.value.code == code


async def test_an_unknown_group_or_campaign_is_not_found(harness):
    with pytest.raises(NotFound):
        await start(harness, "nope")
    with pytest.raises(NotFound):
        await plan_campaign(harness.engine, 1, "nope")
    with pytest.raises(NotFound):
        await show_campaign(harness.engine, 1, 7)


async def test_another_tenants_campaign_is_not_found(harness):
    campaign_id = await start(harness, await a_group(harness, 1), needs_approval=True)
    for verb, given in ((approve_campaign, {}), (abort_campaign, {"reason": "x"}), (resume_campaign, {"reason": "x"})):
        with pytest.raises(NotFound):
            await verb(harness.engine, 2, campaign_id, actor="eve", **given)
    assert await state(harness, campaign_id) == "awaiting_approval"


async def test_campaigns_that_wait_or_fail_do_not_hide_those_behind_them(harness, engine, monkeypatch):
    monkeypatch.setattr("holdfast.engine.campaigns.advance.CAMPAIGNS_BATCH", 1)
    for lease, fault in zip([await a.a_running_task(harness) for _ in range(3)], "abc", strict=True):
        await harness.settle(lease, Failed(a.a_failure(f"validation: {fault}", type=f"Fault{fault}")))
    waits, breaks, going = [one.fingerprint for one in await dead_groups(engine.database, 1)]
    await start(harness, waits, needs_newer_version=True)
    broken, goes = await start(harness, breaks), await start(harness, going)
    await engine.database.fetch(
        "create function no() returns trigger language plpgsql as $$begin raise 'not this one'; end$$"
    )
    await engine.database.fetch(
        f"create trigger no before update on holdfast.campaign for each row when (old.campaign_id = {broken})"
        " execute function no()"
    )
    assert await harness.campaigns_once() == 1
    assert (await show_campaign(engine, 1, goes)).released == 1
    await engine.database.fetch("drop trigger no on holdfast.campaign")
    assert await harness.campaigns_once() == 1
