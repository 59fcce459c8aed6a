"""What everybody's SQL sees of runs: each node once, runs as the engine's rule says, tasks in their place."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.flows import a_choice, a_diamond, a_flow, a_map, a_parent, a_sum, a_wait, flows
from tests.core.verdicts import RunCounts, standing
from tests.flow.steps import finish, step

from holdfast.client.results import Results
from holdfast.core.flows.run_state import RUN_TRANSITIONS, RunState
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.states import TaskState
from holdfast.engine.limits.queues import list_queues
from holdfast.engine.queries.runs import list_runs, show_run
from holdfast.engine.queries.task_detail import show_task
from holdfast.engine.queries.tasks import list_tasks
from holdfast.errors import Conflict, NotFound
from holdfast.store.statements import sql
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness

VERSIONS = count(1)
LABELS = {"retrying": "failed"}


async def tasks_of(harness, run_id) -> dict[int, str]:
    """What the view `tasks` shows of a run's nodes, by number; fails if one is shown twice."""
    rows = await harness.engine.database.fetch(
        "select task_id::bigint - run_id::bigint - 1 as node_no, state from holdfast.tasks"
        " where run_id = $1 and task_id::bigint - run_id::bigint - 1 = node_no",
        run_id,
    )
    assert len(rows) == len({row["node_no"] for row in rows})
    return {row["node_no"]: row["state"] for row in rows}


async def agree(harness, run_id, flow) -> RunState:
    """The views `tasks`, `nodes` and `runs`, the lists and the rule of the tests say the same; answers what."""
    database, catalog = harness.engine.database, harness.engine.catalog
    nodes = await harness.runs.nodes(run_id)
    shown = {name: LABELS.get(state, state) for name, state in nodes.items()}
    names = [node.name for node in flow.nodes]
    assert {names[number]: state for number, state in (await tasks_of(harness, run_id)).items()} == shown
    rows = await database.fetch("select node, state, task_id from holdfast.nodes where run_id = $1", run_id)
    assert {row["node"]: row["state"] for row in rows} == nodes
    listed = {row.node: row.state for row in await list_tasks(database, 1, limit=1_000) if row.run_id == run_id}
    assert listed == nodes
    for row in rows:
        assert (await show_task(database, catalog, 1, int(row["task_id"]))).state == row["state"]
    run = await database.fetchrow("select * from holdfast.runs where run_id = $1", run_id)
    counts = Counter(TaskState(LABELS.get(state, state)) for state in nodes.values())
    expected = standing(
        RunCounts.of(counts, retrying=sum(state == "retrying" for state in nodes.values())),
        is_canceled=run["canceled_at"] is not None,
        is_paused=run["paused_at"] is not None,
    )
    assert run["state"] == expected
    assert [one.state for one in await list_runs(database, catalog, 1) if one.run_id == run_id] == [expected]
    assert run_id in [one.run_id for one in await list_runs(database, catalog, 1, states=[expected])]
    return expected


@st.composite
def stories(draw):
    flow = draw(flows(nodes_max=6))
    acts = st.sampled_from(["claim", "complete", "fail", "retry", "pause", "resume", "cancel", "complete", "claim"])
    return flow, draw(st.lists(acts, max_size=12)), draw(st.sampled_from([None, None, 1, 2])), draw(st.booleans())


async def act(harness, run, what, held) -> None:
    """One thing that may happen to a run; what is refused does not."""
    runs = harness.runs
    if what == "claim":
        held += await harness.claim(2)
    elif what in ("complete", "fail"):
        if held:
            outcome = Completed(b"1") if what == "complete" else Failed(a.a_failure())
            await harness.settle(held.pop(0), outcome)
    else:
        with contextlib.suppress(Conflict):
            await getattr(runs, what)(run)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories())
def test_all_views_agree_at_every_moment_of_any_story(on_engine, story):
    async def play(engine) -> None:
        flow, acts, limit, retries = story
        harness, held = EngineHarness(engine), []
        harness.runs.policy = replace(harness.runs.policy, max_retries=int(retries))
        flow = replace(flow, version=next(VERSIONS))
        run = await harness.runs.start(flow, max_active=limit)
        was = RunState.QUEUED
        for what in acts:
            await act(harness, run, what, held)
            stands = await agree(harness, run, flow)
            assert stands is was or stands in RUN_TRANSITIONS[was], (was, what, stands)
            was = stands
        if await harness.runs.state(run) == "open":
            await act(harness, run, "cancel", held)
        for lease in held:
            await harness.settle(lease, Completed(b"1"))
        await agree(harness, run, flow)

    on_engine(play)


@pytest.mark.parametrize(("fail", "steps"), [([0], 1), ([1], 2), ([2], 3), ([], 9)])
async def test_a_run_that_is_run_again_moves_as_the_table_says(harness, fail, steps):
    """Before anything completed it is queued again, after that it runs on."""
    flow = a_diamond()
    run = await harness.runs.start(flow)
    for _ in range(steps):
        await step(harness, fail=fail)
    was = await agree(harness, run, flow)
    await harness.runs.retry(run, only=None if fail else "end")
    stands = await agree(harness, run, flow)
    assert was is not stands and stands in RUN_TRANSITIONS[was], (was, stands)
    await finish(harness)


async def place(harness, task_id):
    row = await harness.engine.database.fetchrow("select * from holdfast.locate_task($1)", int(task_id))
    return None if row is None else (str(row["run_id"]), row["node_no"], row["item_no"])


async def test_every_task_has_its_place_and_only_those_of_runs(harness):
    plain = await harness.enqueue(a.a_task())
    run = await harness.runs.start(a_map())
    other = await harness.runs.start(a_flow("a>b"))
    await harness.settle(await harness.claim_task(str(int(run) + 1)), Completed(b'{"all": [5, 6, 7]}'))
    items = sorted(
        row["task_id"]
        for row in await harness.engine.database.fetch(
            "select task_id from holdfast.live where run_id = $1 and node_no = 1", int(run)
        )
    )
    assert await place(harness, plain.task_id) is None
    assert await place(harness, run) is None
    assert [await place(harness, int(run) + number) for number in (1, 3)] == [(run, 0, None), (run, 2, None)]
    assert await place(harness, int(other) + 2) == (other, 1, None)
    assert [await place(harness, item) for item in items] == [(run, 1, 0), (run, 1, 1), (run, 1, 2)]
    assert await place(harness, items[-1] + 1) is None


async def test_nodes_and_items_show_input_output_and_place(harness):
    database, catalog = harness.engine.database, harness.engine.catalog
    run = await harness.runs.start(a_map(), tags=("red",))
    await step(harness, outputs={0: {"all": [5, 6]}})
    first, second = await harness.claim(10)
    await harness.settle(first, Completed(b"10"))
    view = await show_task(database, catalog, 1, first.claimed.task_id)
    assert (view.state, bytes(view.output), view.run_id, view.node, view.item) == ("completed", b"10", run, "double", 0)
    assert bytes(view.input) == b'{"by":2,"x":5}'
    assert (await show_task(database, catalog, 1, second.claimed.task_id)).state == "running"
    mapped = await show_task(database, catalog, 1, int(run) + 2)
    assert (mapped.state, mapped.tags, bytes(mapped.input)) == ("running", ["red"], b'{"by":2,"x":[5,6]}')
    blocked = await show_task(database, catalog, 1, int(run) + 3)
    assert (blocked.state, bytes(blocked.input), blocked.queue) == ("blocked", b"null", "default")
    rows = await list_tasks(database, 1, tag="red")
    assert [(row.node, row.state) for row in rows if row.task_id == str(first.claimed.task_id)] == [
        ("double", "completed")
    ]
    assert len(rows) == 5
    await harness.settle(second, Completed(b"12"))
    await finish(harness)


async def test_a_wait_and_a_child_are_shown_as_running_without_a_queue(harness):
    await harness.runs.snapshot(a_sum(1))
    parent, waiting = await harness.runs.start(a_parent()), await harness.runs.start(a_wait())
    database, catalog = harness.engine.database, harness.engine.catalog
    running = {row.node: (row.action, row.queue) for row in await list_tasks(database, 1, states=["running"])}
    assert running == {"inner": ("shop.sum", ""), "paid": ("payment", "")}
    view = await show_run(database, catalog, 1, int(parent))
    assert view.tasks[0].child_run_id is not None
    child = await show_run(database, catalog, 1, int(view.tasks[0].child_run_id))
    assert (child.parent_run_id, child.flow) == (parent, "shop.sum")
    assert (await show_run(database, catalog, 1, int(waiting))).tasks[0].wait_key == "payment"
    await harness.runs.cancel(waiting)
    await finish(harness, outputs={0: {"v": 1}, 1: {"v": 1}})


async def test_lists_of_nodes_are_paged_and_filtered(harness):
    flow = a_choice()
    run = await harness.runs.start(flow)
    await finish(harness, outputs={0: {"n": 0}})
    database = harness.engine.database

    async def names(**asked):
        return [row.node for row in await list_tasks(database, 1, **asked)]

    assert await names() == ["anyway", "after", "big", "count"]
    assert await names(limit=2) == ["anyway", "after"]
    assert await names(limit=2, before=int(run) + 3) == ["big", "count"]
    assert await names(states=["skipped"]) == ["after", "big"]
    assert await names(states=["skipped"], queue="default", action="shop.work", limit=1) == ["after"]
    assert await names(queue="other") == []


async def test_queues_count_blocked_nodes_and_completed_ones(harness):
    await a.a_completed_task(harness)
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": [5, 6, 7]}})
    await step(harness)
    (queue,) = await list_queues(harness.engine.database, 1)
    assert (queue.blocked, queue.completed, queue.queued) == (0, 5, 1)
    await harness.runs.start(a_diamond())
    (queue,) = await list_queues(harness.engine.database, 1)
    assert (queue.blocked, queue.queued, queue.partial) == (3, 2, ())
    assert queue.oldest_seconds is not None
    await finish(harness)
    assert await harness.runs.state(run) == "completed"
    (queue,) = await list_queues(harness.engine.database, 1)
    assert (queue.blocked, queue.completed) == (0, 10)


async def results(harness, *task_ids):
    rows = await harness.engine.database.fetch(sql("results"), [int(one) for one in task_ids], 1)
    return {str(row["task_id"]): row["state"] for row in rows}


async def test_a_completion_of_an_earlier_generation_answers_for_nobody(harness):
    flow = a_flow("a>b")
    run = await harness.runs.start(flow)
    await finish(harness)
    first, second = (harness.runs.task_id(run, flow, name) for name in ("a", "b"))
    assert await results(harness, first, second) == {first: "completed", second: "completed"}
    await harness.runs.retry(run, only="a")
    assert await results(harness, first, second, run) == {}
    await step(harness)
    assert await results(harness, first, second) == {first: "completed"}
    await step(harness, fail=[1])
    assert await results(harness, first, second, run) == {first: "completed", second: "failed", run: "failed"}


async def test_nodes_without_a_task_answer_too(harness):
    run = await harness.runs.start(a_choice())
    await finish(harness, outputs={0: {"n": 0}})
    skipped = str(int(run) + 2)
    assert await results(harness, skipped) == {skipped: "skipped"}
    other = await harness.runs.start(a_flow("a>b"))
    await harness.runs.cancel(other)
    waits = Results(harness.engine.database, 1)
    assert (await waits.wait(int(other) + 2)).state == "canceled"
    with pytest.raises(NotFound):
        await waits.wait(int(other) + 99)
    await waits.close()
