"""The scenarios of the sweep that concern nodes without a task that run again or are held: items, and sub-flows."""

from __future__ import annotations

from typing import Any

from tests.crash import acts
from tests.crash.case import Case
from tests.crash.runs import claim_nodes, end_nodes, judge_resumed, start
from tests.crash.scenario import Scenario

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Binding, Edge, Node, NodeKind
from holdfast.engine.engine import Engine
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness

CHILDREN = """
select run_id, state::text as state, paused_at is not null as is_paused
from holdfast.run
where parent_run_id = $1
order by run_id
"""


async def start_around(engine: Engine, given: dict[str, Any]) -> None:
    """Start a run with a sub-flow of two nodes between two of its own."""
    runs = EngineHarness(engine).runs
    steps = tuple(Node(name=name, action=acts.NODE_ACTION) for name in ("first", "second"))
    order = (Edge(upstream="first", downstream="second", is_order_only=True),)
    inner = FlowDefinition(name="shop.crash_steps", version=given["round"], nodes=steps, edges=order)
    await runs.snapshot(inner)
    nodes = (
        Node(name="list", action=acts.NODE_ACTION),
        Node(name="child", action=inner.name, kind=NodeKind.FLOW),
        Node(name="after", action=acts.NODE_ACTION),
    )
    edges = tuple(
        Edge(upstream=up, downstream=down, is_order_only=True) for up, down in (("list", "child"), ("child", "after"))
    )
    outer = FlowDefinition(name="shop.crash_around", version=given["round"], nodes=nodes, edges=edges)
    given["run_id"], given["node"] = int(await runs.start(outer)), "list"


async def arrange_failed_child(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A run whose sub-flow failed at its second node, and which knows it."""
    runs = EngineHarness(engine).runs
    await start_around(engine, given)
    for fail in (False, False, True):
        await end_nodes(engine, await claim_nodes(engine, given, 1), fail=fail)
    await runs.repair_once()
    assert await runs.state(str(given["run_id"])) == "failed"


async def arrange_mended_child(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """The same, and the sub-flow completed by a re-drive of its own that the run does not know of."""
    await arrange_failed_child(engine, clock, given)
    [child] = await engine.database.fetch(CHILDREN, given["run_id"])
    await EngineHarness(engine).runs.retry(str(child["run_id"]))
    await end_nodes(engine, await claim_nodes(engine, given, 1))


async def arrange_running_child(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    await arrange_failed_child(engine, clock, given)
    await EngineHarness(engine).runs.retry(str(given["run_id"]))


async def arrange_held_child(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A paused run, and its sub-flow that was paused with it between its two nodes."""
    await start_around(engine, given)
    await end_nodes(engine, await claim_nodes(engine, given, 1))
    await EngineHarness(engine).runs.pause(str(given["run_id"]))
    await end_nodes(engine, await claim_nodes(engine, given, 1))


async def arrange_held_items(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A paused run, two of whose four items are over while the others wait their turn."""
    nodes = (
        Node(name="list", action=acts.NODE_ACTION),
        Node(name="each", action=acts.NODE_ACTION, kind=NodeKind.MAP, map_over="x", concurrency=2),
    )
    edge = Edge(upstream="list", downstream="each", bindings=(Binding(input_key="x"),))
    await start(
        engine, given, FlowDefinition(name="shop.crash_held", version=given["round"], nodes=nodes, edges=(edge,))
    )
    await end_nodes(engine, await claim_nodes(engine, given, 1), output=b"[1, 2, 3, 4]")
    await EngineHarness(engine).runs.pause(str(given["run_id"]))
    await end_nodes(engine, await claim_nodes(engine, given, 2))


async def arrange_failed_items(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Four items, two at once, of which every second one failed."""
    await arrange_held_items(engine, clock, given)
    runs, run_id = EngineHarness(engine).runs, str(given["run_id"])
    await runs.resume(run_id)
    await end_nodes(engine, await claim_nodes(engine, given, 2), fail=True)
    assert await runs.state(run_id) == "failed"


async def judge_gone_on(case: Case) -> None:
    """The run went on with the one it had, in which one node ran again; or nothing happened."""
    runs, run_id = EngineHarness(case.engine).runs, case.given["run_id"]
    [child] = await case.engine.database.fetch(CHILDREN, run_id)
    state, attempts = await runs.state(str(run_id)), await runs.attempts(str(child["run_id"]))
    assert (state, child["state"], attempts) in (
        ("completed", "c", {"first": 1, "second": 2}),
        ("failed", "f", {"first": 1, "second": 1}),
    )
    if case.said:
        assert state == "completed"


async def judge_mended(case: Case) -> None:
    """Told or found: the node that failed is mended, and what is behind it ran."""
    runs, run_id = EngineHarness(case.engine).runs, str(case.given["run_id"])
    assert await runs.nodes(run_id) == {"list": "completed", "child": "completed", "after": "completed"}
    assert len(await case.engine.database.fetch(CHILDREN, int(run_id))) == 1


async def judge_replaced(case: Case) -> None:
    """Another run in the place of the first, whose letter is closed; or nothing happened."""
    database, run_id = case.engine.database, case.given["run_id"]
    states = [row["state"] for row in await database.fetch(CHILDREN, run_id)]
    letter = await database.fetchval(
        "select d.state from holdfast.dead_letter d join holdfast.run r on r.run_id = d.run_id"
        " where r.parent_run_id = $1",
        run_id,
    )
    assert (states, letter) in ((["f", "c"], "resolved"), (["f"], "open"))
    if case.said:
        assert len(states) == 2


async def judge_paused(case: Case) -> None:
    """Both or none; what is paused is ended here."""
    runs, run_id = EngineHarness(case.engine).runs, case.given["run_id"]
    row = await case.engine.database.fetchrow(
        "select state::text as state, paused_at is not null as is_paused from holdfast.run where run_id = $1", run_id
    )
    [child] = await case.engine.database.fetch(CHILDREN, run_id)
    assert (row["is_paused"], child["is_paused"]) in ((True, True), (True, False), (False, False))
    assert child["is_paused"] or child["state"] == "c"
    if case.said:
        assert row["is_paused"]
    if row["is_paused"]:
        await runs.cancel(str(run_id))
        await runs.repair_once()


async def judge_freed(case: Case) -> None:
    """Both go on to their end, or the run is still paused; what is paused is ended here."""
    runs, run_id = EngineHarness(case.engine).runs, case.given["run_id"]
    [child] = await case.engine.database.fetch(CHILDREN, run_id)
    row = await case.engine.database.fetchrow(
        "select state::text as state, paused_at is not null as is_paused from holdfast.run where run_id = $1", run_id
    )
    assert (row["state"], row["is_paused"], child["state"]) in (("c", False, "c"), ("o", True, "o"))
    if case.said:
        assert row["state"] == "c"
    if row["is_paused"]:
        await runs.cancel(str(run_id))
        await runs.repair_once()


async def judge_dropped(case: Case) -> None:
    """Canceled, though no item was under way that could have told of its end; or still paused."""
    runs, run_id = EngineHarness(case.engine).runs, str(case.given["run_id"])
    state = await runs.state(run_id)
    assert state == "canceled" or (state == "open" and not case.said)
    if state == "open":
        await runs.cancel(run_id)


async def judge_items(case: Case) -> None:
    """The two that failed ran again, once; the others did not. Or nothing happened."""
    run_id = case.given["run_id"]
    row = await case.engine.database.fetchrow(
        "select n.state::text as state, array_agg(a.attempt order by a.task_id) as attempts from holdfast.node n"
        " join holdfast.attempt a on a.task_id between n.items_first and n.items_first + n.items - 1 and a.state = 'c'"
        " where n.run_id = $1 and n.items > 0 group by 1",
        run_id,
    )
    assert tuple(row) in (("c", [1, 1, 2, 2]), ("f", [1, 1]))
    if case.said:
        assert row["state"] == "c"


SCENARIOS = [
    Scenario(
        name="redrive_child", arrange=arrange_failed_child, judge=judge_gone_on, is_repeatable=False, statements_min=15
    ),
    Scenario(
        name="replace_child", arrange=arrange_failed_child, judge=judge_replaced, is_repeatable=False, statements_min=9
    ),
    Scenario(name="mend_parent", arrange=arrange_mended_child, judge=judge_mended, statements_min=8),
    Scenario(
        name="redrive_items", arrange=arrange_failed_items, judge=judge_items, is_repeatable=False, statements_min=8
    ),
    Scenario(
        name="resume_items", arrange=arrange_held_items, judge=judge_resumed, is_repeatable=False, statements_min=6
    ),
    Scenario(name="resume_child", arrange=arrange_held_child, judge=judge_freed, is_repeatable=False, statements_min=9),
    Scenario(
        name="cancel_items", arrange=arrange_held_items, judge=judge_dropped, is_repeatable=False, statements_min=6
    ),
    Scenario(
        name="pause_run", arrange=arrange_running_child, judge=judge_paused, is_repeatable=False, statements_min=6
    ),
]
ACT_OF = {
    "redrive_child": "redrive",
    "replace_child": "redrive_node",
    "mend_parent": "answer_parent",
    "redrive_items": "redrive",
    "resume_items": "resume_run",
    "resume_child": "resume_run",
    "cancel_items": "cancel_run",
}
