"""`holdfast run waiting|approve|reject|signal` against a real database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.flows import a_wait


def started(make):
    async def prepare(harness):
        return await harness.runs.start(make())

    return prepare


def an_approval():
    return a_wait(config={"approval": True, "prompt": "Ship it?"}, timeout_seconds=3600.0)


def an_event():
    return replace(a_wait(config={"key": "monday"}), version=2)


def test_what_waits_is_found_answered_and_gone(holdfast, seed):
    assert holdfast("run", "waiting").err == "Nothing waits for an approval or an event.\n"
    assert holdfast("run", "waiting", "-o", "json").json == []
    run, other = seed(started(an_approval)), seed(started(an_event))
    rows = holdfast("run", "waiting", "-o", "json").json
    assert [(row["run_id"], row["node"], row["kind"]) for row in rows] == [
        (run, "paid", "approval"), (other, "paid", "event"),
    ]  # fmt: skip
    for row in rows:
        assert holdfast(*row["moves"][0].split()[1:]).code == 0
    assert holdfast("run", "waiting", "-o", "json").json == []
    page = seed(started(an_approval)), seed(started(an_approval))
    first = holdfast("run", "waiting", "--limit", "1", "-o", "json").json
    rest = holdfast("run", "waiting", "--after", first[0]["task_id"], "-o", "json").json
    assert [row["run_id"] for row in first + rest] == list(page)


def test_the_move_that_why_names_is_the_one_that_moves_it(holdfast, seed):
    run = seed(started(an_approval))
    assert "waits for an approval" in holdfast("run", "show", run).out
    why = holdfast("run", "why", run, "-o", "json").json
    assert why["code"] == "waiting_for_approval"
    ran = holdfast(*why["moves"][0].split()[1:], "--reason", "looks right")
    assert (ran.code, ran.out) == (0, f"{run}\tpaid\tapproved\n")
    assert {task["node"]: task["state"] for task in holdfast("run", "show", run, "-o", "json").json["tasks"]} == {
        "paid": "completed", "ship": "queued",
    }  # fmt: skip
    [row] = holdfast("audit", "list", "-o", "json").json
    assert (row["verb"], row["subject_id"], row["reason"]) == ("run.approve", run, "looks right")
    assert row["actor"].startswith(("cli:", "dev:"))
    again = holdfast("run", "approve", run, "paid")
    assert (again.code, "approval_answered" in again.err) == (5, True)


def test_a_rejection_needs_a_reason_and_fails_the_node_with_it(holdfast, seed):
    run = seed(started(an_approval))
    ran = holdfast("run", "reject", run, "paid")
    assert (ran.code, "reason_required" in ran.err) == (2, True)
    done = holdfast("run", "reject", run, "paid", "--reason", "too dear", "-o", "json").json
    assert (done["answer"], done["state"], done["is_early"]) == ("rejected", "failed", False)
    assert "rejected paid: too dear." in holdfast("run", "why", run).out


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("approve", "{run}", "nowhere"), 3, "DAG_VALIDATION_NODE_NOT_FOUND"),
        (("approve", "{run}", "ship"), 2, "not_an_approval"),
        (("approve", "999", "paid"), 3, "DAG_VALIDATION_DAG_RUN_NOT_FOUND"),
        (("signal", "approval:{run}:paid"), 2, "invalid_event"),
        (("signal", "x", "--data", "{{"), 2, "payload_not_json"),
        (("signal", "x", "--run", "999"), 3, "DAG_VALIDATION_DAG_RUN_NOT_FOUND"),
        (("signal", "x" * 1000), 2, "invalid_key"),
    ],
)
def test_an_answer_that_cannot_be_says_why_and_stores_nothing(holdfast, seed, arguments, code, word):
    run = seed(started(an_approval))
    ran = holdfast("run", *(argument.replace("{run}", run) for argument in arguments))
    assert (ran.code, word in ran.err) == (code, True), ran
    assert holdfast("audit", "list", "-o", "json").json == []


def test_an_event_carries_any_json_to_who_waits_for_its_key(holdfast, seed):
    run = seed(started(an_event))
    ran = holdfast("run", "signal", "payment", "--key", "tuesday", "--data", "1")
    assert (ran.code, ran.out, "no node waits for it yet" in ran.err) == (0, "", True)
    ran = holdfast("run", "signal", "payment", "--key", "monday", "--data", '[1, "two"]', "--reason", "by phone")
    assert (ran.code, ran.out) == (0, f"{run}\tpaid\n")
    shown = holdfast("task", "show", str(int(run) + 2), "-o", "json").json
    assert shown["input"] == {"payment": [1, "two"]}
    assert [row["reason"] for row in holdfast("audit", "list", "-o", "json").json] == ["by phone", ""]
