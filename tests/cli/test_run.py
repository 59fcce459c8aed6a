"""`holdfast run …` against a real database."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.core.flows import a_diamond, a_flow, a_map, a_sum
from tests.flow.steps import finish, step

from holdfast.cli.commands.run_watch import NODES_READ_MAX
from holdfast.core.tasks.outcome import Completed

VERBS = ("show", "why", "watch", "graph", "cancel", "pause", "resume", "retry")


def started(make=a_diamond, given=None, **options):
    async def prepare(harness):
        return await harness.runs.start(make(), given, **options)

    return prepare


def ended(make=a_diamond, *, fail=(), outputs=None):
    async def prepare(harness):
        run = await harness.runs.start(make())
        await finish(harness, fail=fail, outputs=outputs)
        return run

    return prepare


async def declared(harness):
    """A flow that was made ready to run and not started."""
    await harness.runs.snapshot(a_sum())


def test_an_empty_list_is_an_empty_array_and_names_its_filters(holdfast):
    ran = holdfast("run", "list", "-o", "json")
    assert (ran.code, ran.out, ran.err) == (0, "[]\n", "")
    assert holdfast("run", "list").err == "No runs yet.\n"
    ran = holdfast("run", "list", "--state", "failed", "--flow", "shop.x")
    assert ran.err == "No runs match state failed, flow shop.x.\n"


def test_runs_are_listed_by_state_flow_and_tag(holdfast, seed):
    done, broken = seed(ended()), seed(ended(fail=[1]))
    waiting = seed(started(lambda: replace(a_flow("a>b"), version=2), tags=("red",)))

    def ids(*options):
        return [row["run_id"] for row in holdfast("run", "list", "-o", "json", *options).json]

    assert ids() == [waiting, broken, done]
    assert ids("--state", "completed") == [done] and ids("--state", "failed,queued") == [waiting, broken]
    assert ids("--tag", "red") == [waiting] and ids("--flow", "shop.other") == []
    assert ids("--limit", "1", "--before", waiting) == [broken]
    row = holdfast("run", "list", "--state", "failed", "-o", "json").json[0]
    assert (row["flow"], row["nodes"], row["pending"], row["failed"]) == ("shop.nightly", 4, 0, 1)
    assert row["error"] == "left: DAG_TASK_EXECUTION_EXCEPTION: connection reset by peer"
    assert holdfast("run", "list").out.splitlines()[1].split("\t")[1:4] == ["failed", "shop.nightly", "4/4"]
    assert "✕ failed" in holdfast("run", "list", "-o", "table").out


def test_a_list_that_cannot_be_is_a_usage_error(holdfast):
    for options in (("--state", "retrying"), ("--limit", "0")):
        assert holdfast("run", "list", *options).code == 2


def test_show_has_the_fields_of_the_contract(holdfast, seed):
    run = seed(ended(fail=[1]))
    view = holdfast("run", "show", run, "-o", "json").json
    assert view["state"] == "failed"
    tasks = [{name: task[name] for name in ("node", "state", "attempt")} for task in view["tasks"]]
    assert tasks == [
        {"node": "start", "state": "completed", "attempt": 1},
        {"node": "left", "state": "failed", "attempt": 1},
        {"node": "right", "state": "completed", "attempt": 1},
        {"node": "end", "state": "upstream_failed", "attempt": 0},
    ]
    table = holdfast("run", "show", run, "-o", "table").out
    assert "shop.nightly version 1" in table and "✕ upstream_failed" in table and "connection reset by peer" in table


def test_a_completed_run_shows_its_input_and_output(holdfast, seed):
    async def prepare(harness):
        run = await harness.runs.start(a_sum(1), {"x": 7})
        await finish(harness, outputs={0: {"v": 1}, 1: {"v": 1}, 2: 2**53 + 1})
        return run

    view = holdfast("run", "show", seed(prepare), "-o", "json").json
    assert (view["input"], view["output"]) == ({"x": 7}, {"sum": 2**53 + 1})


@pytest.mark.parametrize("run_id", ["999", "nonsense"])
def test_an_unknown_run_is_not_found(holdfast, run_id):
    for verb in VERBS:
        ran = holdfast("run", verb, run_id, *(("--reason", "x") if verb == "retry" else ()))
        assert (ran.code, ran.out) == (3, ""), verb
        assert "There is no run" in ran.err, verb
    ran = holdfast("run", "start", "--clone", run_id)
    assert (ran.code, "There is no run" in ran.err) == (3, True)


def test_a_stored_flow_is_started_by_name_with_pairs_or_json(holdfast, seed):
    seed(declared)
    run = holdfast("run", "start", "shop.sum", "x=7")
    assert (run.code, run.err) == (0, f"Started. Follow it: holdfast run watch {run.out}")
    assert holdfast("run", "show", run.out.strip(), "-o", "json").json["input"] == {"x": 7}
    started = holdfast("run", "start", "shop.sum", "--input", '{"x": "seven"}', "--tag", "red", "-o", "json").json
    view = holdfast("run", "show", started["run_id"], "-o", "json").json
    assert (view["input"], view["tags"], view["state"]) == ({"x": "seven"}, ["red"], "queued")


def test_a_value_that_is_no_json_is_text(holdfast, seed):
    seed(declared)
    run = holdfast("run", "start", "shop.sum", "x=2026-11-15").out.strip()
    assert holdfast("run", "show", run, "-o", "json").json["input"] == {"x": "2026-11-15"}


def test_the_same_key_gives_the_same_run_and_another_input_is_refused(holdfast, seed):
    seed(declared)
    first, again = (holdfast("run", "start", "shop.sum", "x=7", "--key", "night").out for _ in range(2))
    assert first == again
    ran = holdfast("run", "start", "shop.sum", "x=8", "--key", "night")
    assert (ran.code, "idempotency_key_reused" in ran.err) == (5, True)


def test_a_key_used_again_tells_how_its_run_stands(holdfast, seed):
    seed(declared)
    start = ("run", "start", "shop.sum", "x=7", "--key", "night")
    first = holdfast(*start, "-o", "json").json
    assert first["state"] == "queued"
    holdfast("run", "cancel", first["run_id"], "--yes")
    assert holdfast(*start, "-o", "json").json == {**first, "state": "canceled"}
    assert holdfast(*start).err.startswith("Started; it is canceled. Follow it")


def test_a_start_that_cannot_be_says_what_to_do(holdfast, seed):
    ran = holdfast("run", "start", "shop.sum", "x=7")
    assert (ran.code, "There is no flow shop.sum." in ran.err, "holdfast flow list" in ran.err) == (3, True, True)
    seed(declared)
    for arguments in ((), ("shop.sum", "x"), ("shop.sum", "--clone", "7"), ("shop.sum",), ("shop.sum", "y=1", "x=1")):
        assert holdfast("run", "start", *arguments).code == 2
    assert holdfast("run", "start", "shop.sum", "x=1", "--version", "9").code == 3


def test_a_copy_keeps_flow_and_input_and_names_its_original(holdfast, seed):
    run = seed(started(a_sum, {"x": 7}, tags=("red",), max_active=2))
    same = holdfast("run", "start", "--clone", run).out.strip()
    other = holdfast("run", "start", "--clone", run, "x=8").out.strip()
    views = [holdfast("run", "show", one, "-o", "json").json for one in (same, other)]
    assert [view["input"] for view in views] == [{"x": 7}, {"x": 8}]
    assert {(view["original_run_id"], view["tags"][0], view["max_active"]) for view in views} == {(run, "red", 2)}
    assert f"copy of\t{run}" in holdfast("run", "show", same).out


def test_a_clone_takes_over_what_is_not_said(holdfast, seed):
    seed(declared)
    run = holdfast("run", "start", "shop.sum", "x=7", "--tag", "red", "--priority", "2").out.strip()
    kept = holdfast("run", "start", "--clone", run).out.strip()
    given = ("--tag", "blue", "--priority", "8", "--max-active", "3")
    changed = holdfast("run", "start", "--clone", run, *given).out.strip()
    shown = [holdfast("run", "show", one, "-o", "json").json for one in (kept, changed)]
    assert [one["tags"] for one in shown] == [["red"], ["blue"]]
    assert [one["priority"] for one in shown] == [2, 8]
    assert [one["max_active"] for one in shown] == [None, 3]
    refused = holdfast("run", "start", "--clone", run, "--version", "1")
    assert (refused.code, "invalid_start" in refused.err) == (2, True)


def test_watch_tells_each_event_with_its_cursor_and_goes_on_after_one(holdfast, seed):
    run = seed(ended(lambda: a_flow("a>b")))
    ran = holdfast("run", "watch", run)
    lines = [line.split("\t") for line in ran.out.splitlines()]
    assert (ran.code, lines[-1]) == (0, [run, "completed"])
    assert [(line[2], line[3]) for line in lines[:3]] == [
        ("execution.started", "(run)"), ("task.queued", "a"), ("task.started", "a"),
    ]  # fmt: skip
    rest = holdfast("run", "watch", run, "--from", lines[2][0]).out.splitlines()
    assert rest == ran.out.splitlines()[3:]
    assert holdfast("run", "watch", run, "--from", "yesterday").code == 2


def test_watch_in_json_is_an_object_on_each_line(holdfast, seed):
    ran = holdfast("run", "watch", seed(ended(fail=[1])), "-o", "json")
    objects = [json.loads(line) for line in ran.out.splitlines()]
    assert (ran.code, objects[-1]["state"]) == (1, "failed")
    assert {"cursor", "at", "kind", "node", "attempt"} <= objects[0].keys()


def test_watch_as_a_table_has_words_and_ends_with_the_verdict(holdfast, seed):
    out = holdfast("run", "watch", seed(ended(a_map, outputs={0: {"all": [1]}})), "-o", "table").out
    assert re.search(r"✓ completed +double\[0\]", out)
    assert out.splitlines()[-1].startswith("✓ completed  Completed ")


def test_watching_longer_than_asked_is_a_timeout(holdfast, seed):
    run = seed(started())
    ran = holdfast("run", "watch", run, "--timeout", "100ms")
    assert (ran.code, f"Run {run} has not ended" in ran.err) == (6, True)


def test_starting_and_waiting_exits_with_the_outcome(holdfast, seed):
    async def prepare(harness):
        await harness.runs.snapshot(a_sum(1))

    seed(prepare)
    ran = holdfast("run", "start", "shop.sum", "x=7", "--wait", "--timeout", "100ms")
    assert ran.code == 6
    run = re.search(r"Started run (\d+)", ran.err)[1]
    holdfast("run", "cancel", run)
    assert holdfast("run", "show", run, "-o", "json").json["state"] == "canceled"


def test_graph_draws_nodes_with_their_states(holdfast, seed, tmp_path):
    run = seed(ended(fail=[1]))
    drawn = holdfast("run", "graph", run).out
    assert "✕ failed" in drawn and "✕ upstream failed" in drawn and "┌" in drawn
    assert max(map(len, holdfast("run", "graph", run, "--width", "60").out.splitlines())) <= 60
    svg = holdfast("run", "graph", run, "--svg", "-").out
    assert svg.startswith("<svg") and 'data-node="left"' in svg and "hf-failed" in svg
    file = tmp_path / "run.svg"
    assert f"Wrote {file}." in holdfast("run", "graph", run, "--svg", str(file)).err and file.read_text() == svg
    found = holdfast("run", "graph", run, "-o", "json").json
    assert {"upstream": "left", "downstream": "end"} in found["edges"]
    assert {"node": "end", "state": "upstream_failed"} in found["nodes"]


def test_graph_counts_the_items_of_a_node(holdfast, seed):
    async def prepare(harness):
        run = await harness.runs.start(a_map())
        await step(harness, outputs={0: {"all": [1, 2, 3]}})
        await harness.settle((await harness.claim(1))[0], Completed(b"1"))
        return run

    run = seed(prepare)
    assert "▶ running 1/3" in holdfast("run", "graph", run).out
    assert "▶ running 1/3" in holdfast("run", "show", run, "-o", "table").out


def test_why_explains_the_run_and_one_node(holdfast, seed):
    run = seed(ended(fail=[1]))
    assert holdfast("run", "why", run).out.startswith("Failed ")
    found = holdfast("run", "why", run, "--node", "end", "-o", "json").json
    assert (found["node"], found["code"]) == ("end", "upstream_failed")
    assert "→ holdfast run retry" in holdfast("run", "why", run, "-o", "table").out
    assert holdfast("run", "why", run, "--node", "nowhere").code == 3
    blocked = str(int(run) + 4)
    assert holdfast("task", "why", blocked).out == "Did not run: left failed: " + (
        "DAG_TASK_EXECUTION_EXCEPTION: connection reset by peer.\n"
    )
    assert holdfast("task", "show", blocked, "-o", "json").json["node"] == "end"


def test_retry_needs_a_reason_and_resets_what_failed(holdfast, seed):
    run = seed(ended(fail=[1]))
    assert holdfast("run", "retry", run).code == 2
    assert holdfast("run", "retry", run, "--reason", "mended", "-o", "json").json["reset"] == ["left", "end"]
    view = holdfast("run", "show", run, "-o", "json").json
    assert (view["state"], view["generation"]) == ("running", 2)
    assert holdfast("run", "retry", run, "--reason", "again").code == 5


def test_retry_of_one_node_and_of_its_task(holdfast, seed):
    other, run = seed(ended()), seed(ended(fail=[1]))
    ran = holdfast("run", "retry", other, "--node", "right", "--reason", "once more", "-o", "json")
    assert ran.json["reset"] == ["right", "end"]
    failed = str(int(run) + 2)
    assert "retry_budget_exhausted" in holdfast("task", "retry", failed, "--reason", "mended").err
    assert holdfast("dead", "redrive", "--task", failed, "--reason", "mended", "-o", "json").json["attempt"] == 2
    states = {task["node"]: task["state"] for task in holdfast("run", "show", run, "-o", "json").json["tasks"]}
    assert states == {"start": "completed", "left": "queued", "right": "completed", "end": "blocked"}


def test_runs_are_paused_resumed_and_canceled_with_who_and_why(holdfast, seed):
    run = seed(started())
    assert holdfast("run", "pause", run, "--reason", "look first").out == f"{run}\tpaused\n"
    view = holdfast("run", "show", run, "-o", "json").json
    assert (view["paused_reason"], view["paused_by"].startswith("cli:")) == ("look first", True)
    assert holdfast("run", "pause", run).code == 5
    assert holdfast("run", "resume", run, "-o", "json").json == {"run_id": run, "state": "queued"}
    assert holdfast("run", "cancel", run, "--reason", "enough").out == f"{run}\tcanceled\n"
    assert holdfast("run", "why", run).out.endswith(": enough.\n")
    other, third = seed(started()), seed(started())
    assert holdfast("run", "cancel", other, third).code == 2
    assert len(holdfast("run", "cancel", other, third, "--yes", "-o", "json").json) == 2


def test_of_several_runs_each_is_steered_or_told_why_not(holdfast, seed):
    first, second = seed(started()), seed(started())
    holdfast("run", "pause", first)
    ran = holdfast("run", "pause", first, "999", second)
    assert (ran.code, ran.out) == (5, f"{second}\tpaused\n")
    assert "There is no run 999." in ran.err
    ran = holdfast("run", "cancel", "999", first, second, "--yes", "-o", "json")
    assert [(one["run_id"], one.get("state")) for one in ran.json] == [
        ("999", None),
        (first, "canceled"),
        (second, "canceled"),
    ]
    assert ran.code == 5


def test_a_node_that_has_not_begun_is_canceled_only_with_its_run(holdfast, seed):
    run = seed(started())
    ran = holdfast("task", "cancel", str(int(run) + 4))
    assert (ran.code, f"holdfast run cancel {run}" in ran.err) == (5, True)


def test_a_node_shows_its_execution_path(holdfast, seed):
    run = seed(ended(fail=[1]))
    flow = holdfast("run", "show", run, "-o", "json").json["flow"]
    first, last = str(int(run) + 1), str(int(run) + 4)
    path = [f"flow:{flow}", f"run:{run}", "node:start", f"task:{first}", "attempt:1"]
    assert holdfast("task", "show", first, "-o", "json").json["path"] == path
    assert f"path\t{' / '.join(path)}\n" in holdfast("task", "show", first).out
    never = holdfast("task", "show", last, "-o", "json").json["path"]
    assert never == [f"flow:{flow}", f"run:{run}", "node:end", f"task:{last}"]


def test_the_log_of_a_node_that_never_ran_ends(holdfast, seed):
    run = seed(ended(fail=[1]))
    ran = holdfast("task", "logs", str(int(run) + 4), "--follow")
    assert (ran.code, ran.out, "logged nothing" in ran.err) == (0, "", True)


def test_on_a_terminal_watch_draws_a_screen(program, seed):
    run = seed(ended(fail=[1]))
    shown = program.on_a_terminal("run", "watch", run)
    assert "shop.nightly v1" in shown and "upstream_failed" in shown
    assert "Failed " in shown.splitlines()[-1]


def test_the_nodes_of_a_large_run_are_not_read_again_and_again_for_its_screen(program, seed):
    large = seed(ended(lambda: a_flow(" ".join(f"a>b{number}" for number in range(NODES_READ_MAX)))))
    shown = program.on_a_terminal("run", "watch", large)
    assert f"{NODES_READ_MAX + 1}/{NODES_READ_MAX + 1}" in shown and "0 active, 0 failed" in shown
    assert "more nodes" not in shown
