"""`holdfast campaign`: plan, start, follow, approve, stop, resume, abort."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.testing import factories as a


async def a_group(harness):
    await harness.enqueue_many(a.a_task(max_retries=0, queue="mail"), [{"n": n} for n in range(4)])
    for lease in await harness.claim(10):
        await harness.settle(lease, Failed(a.a_failure()))


async def one_step(harness):
    harness.know(a.ACTION)
    return await harness.campaigns_once()


async def fail_what_is_out(harness):
    harness.know(a.ACTION)
    await harness.campaigns_once()
    for lease in await harness.claim(10):
        await harness.settle(lease, Failed(a.a_failure()))
    await harness.campaigns_once()


async def complete_everything(harness):
    harness.know(a.ACTION)
    for _ in range(6):
        await harness.campaigns_once()
        for lease in await harness.claim(10):
            await harness.settle(lease, Completed(b"1"))


@pytest.fixture
def group(holdfast, seed):
    seed(a_group)
    return holdfast("dead", "groups", "-o", "json").json[0]["fingerprint"]


def start(holdfast, group, *options, **environ):
    asked = ("campaign", "start", "--group", group, "--reason", "fixed", "--yes", *options)
    return holdfast(*asked, "-o", "json", **environ)


def test_a_dry_run_names_counts_and_changes_nothing(holdfast, group):
    plan = holdfast("campaign", "start", "--group", group, "--dry-run", "-o", "json").json
    assert (plan["tasks"], plan["lanes"][0]["queue"], plan["effects"]) == (4, "mail", [])
    assert "4 on queue mail (no limit)" in holdfast("campaign", "start", "--group", group, "--dry-run").out


def test_a_dry_run_of_a_large_group_says_that_there_may_be_more(holdfast, group, monkeypatch):
    monkeypatch.setattr("holdfast.engine.campaigns.plan.LETTERS_MAX", 3)
    shown = holdfast("campaign", "start", "--group", group, "--dry-run").out
    assert "3+ on queue mail (no limit)" in shown and "may be higher" in shown
    assert holdfast("campaign", "list", "-o", "json").json == []


def test_a_campaign_is_followed_to_its_end(holdfast, seed, group):
    campaign_id = start(holdfast, group, "--name", "mails of May", "--canary", "1").json["campaign_id"]
    seed(complete_everything)
    watched = holdfast("campaign", "show", campaign_id, "--watch")
    assert (watched.code, watched.out) == (0, f"{campaign_id}\tcompleted\n")
    assert "█" * 40 in watched.err and "4/4" in watched.err
    shown = holdfast("campaign", "show", campaign_id, "-o", "json").json
    assert (shown["name"], shown["succeeded"], shown["state"]) == ("mails of May", 4, "completed")
    assert "100 %" in holdfast("campaign", "show", campaign_id, "-o", "table").out


def test_a_campaign_that_stopped_is_resumed_or_aborted(holdfast, seed, group):
    campaign_id = start(holdfast, group, "--canary", "1").json["campaign_id"]
    seed(fail_what_is_out)
    watched = holdfast("campaign", "show", campaign_id, "--watch")
    assert (watched.code, "the same failure came back" in watched.err) == (1, True)
    assert holdfast("campaign", "resume", campaign_id, "--reason", "really").out == f"{campaign_id}\tcanary\n"
    assert holdfast("campaign", "abort", campaign_id, "--reason", "enough").out == f"{campaign_id}\taborted\n"
    again = holdfast("campaign", "resume", campaign_id, "--reason", "again")
    assert (again.code, "campaign_wrong_state" in again.err) == (5, True)


def test_an_approval_needs_another_person(holdfast, seed, group):
    campaign_id = start(holdfast, group, "--approval", LOGNAME="ann").json["campaign_id"]
    assert seed(one_step) == 0
    own = holdfast("campaign", "approve", campaign_id, LOGNAME="ann")
    assert (own.code, "approval_by_starter" in own.err) == (5, True)
    assert holdfast("campaign", "approve", campaign_id, LOGNAME="bob").out == f"{campaign_id}\tcanary\n"
    assert seed(one_step) == 4


def test_what_was_approved_and_stopped_is_approved_again(holdfast, seed, group):
    campaign_id = start(holdfast, group, "--approval", "--canary", "1", LOGNAME="ann").json["campaign_id"]
    assert holdfast("campaign", "approve", campaign_id, LOGNAME="bob").code == 0
    seed(fail_what_is_out)
    resumed = holdfast("campaign", "resume", campaign_id, "--reason", "really", LOGNAME="ann")
    assert resumed.out == f"{campaign_id}\tawaiting_approval\n"
    shown = holdfast("campaign", "show", campaign_id, "-o", "table").out
    assert "resumed by" in shown and "not approved yet" in shown
    own = holdfast("campaign", "approve", campaign_id, LOGNAME="ann")
    assert (own.code, "was resumed by" in own.err) == (5, True)
    assert holdfast("campaign", "approve", campaign_id, LOGNAME="bob").out == f"{campaign_id}\tcanary\n"


def test_an_abort_needs_no_words(holdfast, group):
    campaign_id = start(holdfast, group).json["campaign_id"]
    assert holdfast("campaign", "abort", campaign_id).out == f"{campaign_id}\taborted\n"
    [row] = holdfast("audit", "list", "--verb", "campaign.abort", "-o", "json").json
    assert row["reason"] == "aborted; no reason was given"


def test_a_gate_shows_what_it_waits_for(holdfast, seed, group):
    campaign_id = start(holdfast, group, "--newer").json["campaign_id"]
    seed(one_step)
    shown = holdfast("campaign", "show", campaign_id, "-o", "table").out
    assert "newer than unnamed" in shown and "waits for a worker of a newer version" in shown


def test_a_reason_is_mandatory_and_a_yes_is_asked_for(holdfast, group):
    no_reason = holdfast("campaign", "start", "--group", group, "--yes")
    assert (no_reason.code, "reason_required" in no_reason.err) == (2, True)
    unsure = holdfast("campaign", "start", "--group", group, "--reason", "fixed")
    assert (unsure.code, "confirmation_needed" in unsure.err) == (2, True)


def test_an_unknown_campaign_or_group_is_not_found(holdfast):
    for verb in ("show", "approve", "abort"):
        assert holdfast("campaign", verb, "7").code == 3
    assert holdfast("campaign", "show", "seven").code == 3
    assert holdfast("campaign", "start", "--group", "nope", "--dry-run").code == 3


def test_campaigns_are_listed(holdfast, group):
    assert "No campaigns yet" in holdfast("campaign", "list").err
    start(holdfast, group)
    [row] = holdfast("campaign", "list", "-o", "json").json
    assert (row["state"], row["total"], row["queues"]) == ("canary", 4, ["mail"])
    assert "canary" in holdfast("campaign", "list", "-o", "table").out
