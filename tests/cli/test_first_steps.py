"""What people meet first at the command line: waits, maps and failures in lists, and how things are asked for."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console
from tests.core.flows import a_flow, a_map, a_wait
from tests.flow.steps import finish, step

from holdfast.cli.commands.run_watch import screen_of
from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.queries.runs import show_run
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing import factories as a


async def a_failed_task(harness):
    await harness.engine.catalog.declare(DEFAULT_TENANT_ID, a.ACTION, "default", RetryPolicy(), "")
    return await a.a_failed_task(harness, queue="mail")


async def a_waiting_run(harness):
    return await harness.runs.start(a_wait())


async def a_running_map(harness):
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": [1, 2]}})
    return run


def test_a_wait_is_shown_as_waiting_and_on_nobody(holdfast, seed):
    run_id = seed(a_waiting_run)
    [row] = holdfast("task", "list", "--state", "running", "-o", "json").json
    assert (row["state"], row["kind"]) == ("running", "wait")
    for ran in (
        holdfast("task", "list", "-o", "table"),
        holdfast("run", "show", run_id, "-o", "table"),
        holdfast("run", "graph", run_id),
    ):
        assert "waiting" in ran.out and "on None" not in ran.out and "▶ running" not in ran.out.partition("NODE")[2]


def test_a_map_has_no_attempts_of_its_own(holdfast, seed):
    seed(a_running_map)
    rows = holdfast("task", "list", "-o", "json").json
    [parent] = [row for row in rows if row["kind"] == "map"]
    assert {row["kind"] for row in rows if row["node"] == parent["node"]} == {"map", "item"}
    [line] = [
        one for one in holdfast("task", "list", "-o", "table").out.splitlines() if one.startswith(parent["task_id"])
    ]
    assert "0/" not in line and "its items are tasks" in line


def test_a_failed_task_says_when_it_started_and_how_long_it_took(holdfast, seed):
    task_id = seed(a_failed_task)
    [row] = holdfast("task", "list", "-o", "json").json
    assert row["started_at"] is not None and row["started_at"] <= row["ended_at"]
    assert holdfast("task", "show", task_id, "-o", "json").json["started_at"] == row["started_at"]
    took = re.search(r"(\d+(?:\.\d)? m?s)  DAG_", holdfast("task", "list", "-o", "table").out)
    assert took is not None


def test_the_letter_of_a_plain_task_names_no_run(holdfast, seed):
    seed(a_failed_task)
    shown = holdfast("dead", "show", "1").out
    assert "task\t1\n" in shown and "run\t" not in shown


@pytest.mark.parametrize("verb", ["redrive", "ignore", "delete"])
def test_an_unknown_group_is_said_before_anything_is_asked(holdfast, seed, verb):
    seed(a_failed_task)
    ran = holdfast("dead", verb, "--group", "f57f", "--reason", "fixed")
    assert (ran.code, "There is no group 'f57f'" in ran.err, "--yes" in ran.err) == (3, True, False)


def test_a_task_is_submitted_with_pairs(holdfast, seed):
    seed(a_failed_task)
    task_id = holdfast(
        "task", "submit", a.ACTION, "order=7", "note=a b", "--input", '{"order": 1, "x": [1]}'
    ).out.strip()
    assert holdfast("task", "show", task_id, "-o", "json").json["input"] == {"order": 7, "note": "a b", "x": [1]}
    copy_id = holdfast("task", "submit", "--copy-of", task_id, "order=8").out.strip()
    assert holdfast("task", "show", copy_id, "-o", "json").json["input"]["order"] == 8


def test_a_queue_is_shown_and_its_pause_has_the_last_reason(holdfast, seed):
    seed(a_failed_task)
    assert holdfast("queue", "show", "nowhere").code == 3
    holdfast("queue", "pause", "mail", "--reason", "first")
    before = holdfast("queue", "show", "mail", "-o", "json").json
    assert holdfast("queue", "pause", "mail").out == "mail\talready paused\n"
    assert holdfast("queue", "pause", "mail", "--reason", "second").out == "mail\tpaused\n"
    after = holdfast("queue", "show", "mail", "-o", "json").json
    assert (before["paused_reason"], after["paused_reason"]) == ("first", "second")
    assert after["paused_at"] == before["paused_at"] and after["failed"] == 1
    assert "second" in holdfast("queue", "show", "mail").out


def test_a_queue_is_limited_before_its_first_task(holdfast):
    assert holdfast("queue", "limit", "later", "--running", "2").code == 0
    assert holdfast("queue", "limit", "much-later", "--retries", "10/1m").code == 0
    assert holdfast("queue", "show", "later", "-o", "json").json["max_running"] == 2


def ids(holdfast, noun, *options):
    key = {"task": "task_id", "run": "run_id", "dead": "dead_letter_id"}[noun]
    return [row[key] for row in holdfast(noun, "list", "-o", "json", *options).json]


def test_lists_go_back_to_a_time(holdfast, seed):
    async def prepare(harness):
        run_id = await harness.runs.start(a_flow("a>b"))
        await finish(harness, fail=[0])
        lease = await a.a_running_task(harness)
        await harness.settle(lease, Failed(a.a_failure("validation: no")))
        created = await harness.engine.database.fetchval("select max(created_at) from holdfast.body")
        return run_id, lease.task_id, created

    _, task_id, created = seed(prepare)
    soon = (created + timedelta(seconds=1)).isoformat()
    for noun in ("task", "run", "dead"):
        everything = ids(holdfast, noun)
        assert everything and ids(holdfast, noun, "--since", "1h") == everything
        assert holdfast(noun, "list", "--since", soon, "-o", "json").json == [] or noun == "dead"
        assert "invalid_since" in holdfast(noun, "list", "--since", "2026-99").err
    [row] = holdfast("task", "list", "--since", created.isoformat(), "-o", "json").json
    assert row["task_id"] == task_id


def test_a_page_says_where_it_goes_on_without_showing_ids(holdfast, seed):
    async def prepare(harness):
        await harness.enqueue_many(a.a_task(), [{}] * 3)
        await harness.runs.start(a_flow("a>b"))

    seed(prepare)
    ran = holdfast("task", "list", "--limit", "2", "-o", "table")
    place = re.search(r"More: --before (\S+)", ran.err)
    assert place is not None and not re.search(r"\d{10}", place[1])
    first = holdfast("task", "list", "--limit", "2", "-o", "json").json
    rest = holdfast("task", "list", "--before", place[1], "-o", "json").json
    everything = holdfast("task", "list", "-o", "json").json
    assert [row["task_id"] for row in first + rest] == [row["task_id"] for row in everything]


def test_one_look_of_top_has_the_workers(holdfast, seed):
    async def prepare(harness):
        await a.a_running_task(harness)

    seed(prepare)
    assert "first" in holdfast("top", "--once", "-o", "table").out


def test_a_role_has_its_article(holdfast):
    assert "is an operator." in holdfast("token", "create", "ops", "--role", "operator").err


def test_the_bar_of_a_watched_run_has_a_line_of_its_own(seed):
    async def prepare(harness):
        run_id = await harness.runs.start(a_flow("a>b"))
        await finish(harness)
        engine = harness.engine
        return await show_run(engine.database, engine.catalog, engine.tenant_id, int(run_id))

    console = Console(file=StringIO(), width=100)
    console.print(screen_of(seed(prepare), []))
    lines = console.file.getvalue().splitlines()
    [head] = [line for line in lines if "NODE" in line]
    assert head.startswith("NODE") and any(set(line.strip()) <= set("━╸╺ ") and line.strip() for line in lines)
