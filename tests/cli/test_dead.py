"""`holdfast dead`: groups, letters, and what an operator may do about them."""

from __future__ import annotations

import json

from tests.core.flows import a_flow

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.testing import factories as a


async def three_faults(harness):
    """Two tasks with one fault, one with another, and what is no fault at all."""
    ids = []
    for order in (7, 8):
        lease = await a.a_running_task(harness, queue="mail", input={"order": order})
        await harness.settle(lease, Failed(a.a_failure(f"validation: no order {order}", type="shop.NoOrder")))
        ids.append(lease.task_id)
    ids.append(await a.a_failed_task(harness))
    await a.a_completed_task(harness)
    return ids


async def sweep(harness):
    return await harness.sweep_once()


def groups(holdfast):
    return holdfast("dead", "groups", "-o", "json").json


def test_groups_are_empty_at_first(holdfast):
    assert groups(holdfast) == []
    assert "No unresolved dead letters" in holdfast("dead", "groups").err


def test_groups_list_unresolved_letters_by_fault(holdfast, seed):
    seed(three_faults)
    first, second = groups(holdfast)
    assert (first["count"], first["queues"], first["type"]) == (2, ["mail"], "shop.NoOrder")
    assert (second["count"], second["actions"]) == (1, [a.ACTION])
    assert len(first["fingerprint"]) == 16 and first["first_seen"] <= first["last_seen"]
    assert "NoOrder: validation: no order 8" in holdfast("dead", "groups", "-o", "table").out


def test_a_task_is_re_driven_at_once(holdfast, seed):
    task_id = seed(three_faults)[2]
    body = holdfast("dead", "redrive", "--task", task_id, "--reason", "fixed", "-o", "json").json
    assert (body["state"], body["attempt"], body["task_id"]) == ("queued", 2, task_id)
    [letter] = holdfast("dead", "list", "--task", task_id, "-o", "json").json
    assert (letter["state"], letter["dead_letter_id"]) == ("retrying", body["dead_letter_id"])
    assert letter["actor"].startswith("cli:") and letter["disposition_reason"] == "fixed"
    again = holdfast("dead", "redrive", "--task", task_id, "--reason", "again")
    assert (again.code, "execution_not_retryable" in again.err) == (5, True)


def test_a_group_is_asked_for_and_swept(holdfast, seed):
    seed(three_faults)
    fingerprint = groups(holdfast)[0]["fingerprint"]
    body = holdfast("dead", "redrive", "--group", fingerprint, "--reason", "fixed", "--yes", "-o", "json").json
    assert (body["letters"], body["state"]) == (2, "retry_requested")
    assert seed(sweep) == 2
    assert groups(holdfast)[0]["retrying"] == 2


def test_a_group_needs_a_yes(holdfast, seed):
    seed(three_faults)
    ran = holdfast("dead", "redrive", "--group", groups(holdfast)[0]["fingerprint"], "--reason", "fixed")
    assert (ran.code, "confirmation_needed" in ran.err) == (2, True)


def test_what_is_re_driven_and_why_must_be_said(holdfast, subtests):
    for options in [(), ("--task", "1"), ("--reason", "x"), ("--task", "1", "--group", "f", "--reason", "x")]:
        with subtests.test(options=options):
            assert holdfast("dead", "redrive", *options).code == 2


def test_an_unknown_group_or_letter_is_not_found(holdfast):
    assert holdfast("dead", "redrive", "--group", "nope", "--reason", "x", "--yes").code == 3
    assert holdfast("dead", "ignore", "--task", "7", "--reason", "x").code == 3
    for letter in ("7", "seven"):
        assert holdfast("dead", "show", letter).code == 3


def test_ignoring_empties_the_group_and_keeps_the_reason(holdfast, seed):
    task_id = seed(three_faults)[2]
    ran = holdfast("dead", "ignore", "--task", task_id, "--reason", "known", "-o", "json")
    assert ran.json == {"letters": 1, "tasks": 1, "disposition": "ignored"}
    assert [group["count"] for group in groups(holdfast)] == [2]
    assert holdfast("dead", "list", "--task", task_id, "-o", "json").json == []
    [letter] = holdfast("dead", "list", "--task", task_id, "--all", "-o", "json").json
    assert (letter["state"], letter["disposition_reason"]) == ("ignored", "known")


def test_what_was_ignored_is_taken_up_again_with_its_group(holdfast, seed):
    seed(three_faults)
    fingerprint = groups(holdfast)[0]["fingerprint"]
    assert holdfast("dead", "ignore", "--group", fingerprint, "--reason", "known", "--yes").code == 0
    assert "tasks" in holdfast("dead", "redrive", "--group", fingerprint, "--dry-run").out
    body = holdfast("dead", "redrive", "--group", fingerprint, "--reason", "fixed", "--yes", "-o", "json").json
    assert (body["letters"], body["state"]) == (2, "retry_requested")
    assert seed(sweep) == 2


def test_what_was_ignored_is_taken_up_again_by_a_campaign(holdfast, seed):
    seed(three_faults)
    fingerprint = groups(holdfast)[0]["fingerprint"]
    holdfast("dead", "ignore", "--group", fingerprint, "--reason", "known", "--yes")
    start = ("campaign", "start", "--group", fingerprint, "--reason", "fixed", "--yes", "-o", "json")
    assert holdfast(*start).json["total"] == 2
    assert seed(lambda harness: harness.campaigns_once()) == 2


def test_what_was_abandoned_with_its_run_is_not_taken_up_again(holdfast, seed):
    async def a_failed_run(harness):
        """One of its nodes failed, the other is queued."""
        await harness.runs.start(a_flow(alone=("a", "b")))
        await harness.settle(await harness.claim_one(), Failed(a.a_failure()))

    seed(a_failed_run)
    [group] = groups(holdfast)
    which = ("--group", group["fingerprint"], "--reason", "x", "--yes")
    assert holdfast("dead", "ignore", *which, "--abandon").code == 0
    assert holdfast("dead", "redrive", *which).code == 3


def test_a_group_may_be_called_resolved(holdfast, seed):
    seed(three_faults)
    fingerprint = groups(holdfast)[0]["fingerprint"]
    ran = holdfast("dead", "ignore", "--group", fingerprint, "--resolved", "--reason", "paid back", "--yes")
    assert ran.out == f"{fingerprint}\tresolved\t2\n"


async def failed_again(harness):
    """A task that failed, was re-driven and failed again: an older letter that retries, and an open one."""
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
    return task_id


async def later(harness):
    """The pause after a dispatch is over; what is due is swept."""
    from holdfast.testing.clock import DatabaseClock

    clock = DatabaseClock(harness.engine.database)
    await clock.advance(seconds=3600)
    swept = await harness.sweep_once()
    await clock.reset()
    return swept


def test_what_is_called_resolved_is_not_run_again(holdfast, seed):
    task_id = seed(failed_again)
    body = holdfast("dead", "ignore", "--task", task_id, "--resolved", "--reason", "paid back", "-o", "json").json
    assert body == {"letters": 2, "tasks": 1, "disposition": "resolved"}
    assert seed(later) == 0
    assert holdfast("task", "show", task_id, "-o", "json").json["state"] == "failed"
    assert groups(holdfast) == []


def test_a_letter_is_shown_with_its_input(holdfast, seed):
    task_id = seed(three_faults)[0]
    [letter] = holdfast("dead", "list", "--task", task_id, "-o", "json").json
    shown = holdfast("dead", "show", letter["dead_letter_id"], "-o", "json").json
    assert (shown["input"], shown["run_id"]) == ({"order": 7}, task_id)
    assert "validation: no order 7" in holdfast("dead", "show", letter["dead_letter_id"]).out


def test_a_task_is_deleted_for_good(holdfast, seed):
    task_id = seed(three_faults)[2]
    delete = ("dead", "delete", "--task", task_id, "--reason", "a test")
    assert holdfast(*delete).code == 2
    assert holdfast(*delete, "--yes").out == f"{task_id}\tdeleted\t1\n"
    assert holdfast("task", "show", task_id).code == 3
    fingerprint = groups(holdfast)[0]["fingerprint"]
    body = holdfast("dead", "delete", "--group", fingerprint, "--reason", "a test", "--yes", "-o", "json").json
    assert body == {"tasks": 2, "runs": 0, "letters": 2, "left": 0}
    assert groups(holdfast) == []


def test_export_writes_one_object_per_line(holdfast, seed):
    seed(three_faults)
    lines = holdfast("dead", "export").out.splitlines()
    assert [json.loads(line)["input"] for line in lines] == [{}, {"order": 8}, {"order": 7}]
    fingerprint = groups(holdfast)[0]["fingerprint"]
    assert len(holdfast("dead", "export", "--group", fingerprint).out.splitlines()) == 2


def test_a_success_empties_everything(holdfast, seed):
    ids = seed(three_faults)

    async def succeed(harness):
        harness.know(a.ACTION)
        for task_id in ids:
            await harness.redrive(task_id)
            await harness.settle(await harness.claim_task(task_id), Completed(b"1"))

    seed(succeed)
    assert groups(holdfast) == []
    assert {one["state"] for one in holdfast("dead", "list", "--all", "-o", "json").json} == {"resolved"}


def test_why_names_the_command_that_runs_it_again(holdfast, seed):
    ids = seed(three_faults)
    assert f"holdfast task retry {ids[0]}" in holdfast("task", "why", ids[0], "-o", "table").out
    assert f"holdfast dead redrive --task {ids[2]}" in holdfast("task", "why", ids[2], "-o", "table").out
