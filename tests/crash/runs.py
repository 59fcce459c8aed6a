"""The scenarios of the sweep that concern runs. After the crash and the repair every node ran to one end, the run has
the verdict of its nodes, and what was acknowledged is what happened; the invariants are asked after each sweep."""

from __future__ import annotations

from typing import Any

from tests.crash import acts
from tests.crash.repair import register

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Binding, Edge, Node, NodeKind
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Claimed, report_of
from holdfast.engine.lifecycle.runs.inputs import with_inputs
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_failure


async def claim_nodes(engine: Engine, given: dict[str, Any], count: int) -> list[Claimed]:
    """Claim as the victim's worker, whose identity goes to the victim."""
    if "worker_id" not in given:
        given["worker_id"] = await register(engine, "victim", [acts.NODE_ACTION])
        given["actions"] = [acts.NODE_ACTION]
    identity = WorkerIdentity(
        worker_id=given["worker_id"], actions=given["actions"], queues=None, lease_seconds=acts.LEASE_SECONDS
    )
    async with engine.database.session() as session:
        claimed = await with_inputs(session, engine.catalog, await Claimer(identity).claim(session, count, now=0.0))
    assert len(claimed) == count
    await engine.catalog.learn((), {one.policy_id for one in claimed})
    return claimed


async def end_nodes(engine: Engine, claimed: list[Claimed], *, fail: bool = False, output: bytes = b"1") -> None:
    outcome = Failed(a_failure()) if fail else Completed(output)
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(one, outcome) for one in claimed])


async def start(engine: Engine, given: dict[str, Any], flow: FlowDefinition) -> None:
    given["run_id"] = int(await EngineHarness(engine).runs.start(flow))


async def arrange_join(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Both nodes before the last one are about to be reported together."""
    await start(engine, given, acts.a_crash_flow(given["round"]))
    await end_nodes(engine, await claim_nodes(engine, given, 1))
    given["leases"] = [acts.plain_lease(one) for one in await claim_nodes(engine, given, 2)]
    given["outcomes"] = ["complete", "complete"]
    given["want"] = 1


async def arrange_failure_in_run(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """One of two fails for good: the last node is upstream_failed, and the other one ends the run."""
    await arrange_join(engine, clock, given)
    given["outcomes"] = ["stop", "complete"]
    given["want"] = 0


async def arrange_items(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """The report of a list releases its items."""
    nodes = (
        Node(name="list", action=acts.NODE_ACTION),
        Node(name="each", action=acts.NODE_ACTION, kind=NodeKind.MAP, map_over="x", concurrency=2),
    )
    edge = Edge(upstream="list", downstream="each", bindings=(Binding(input_key="x"),))
    flow = FlowDefinition(name="shop.crash_items", version=given["round"], nodes=nodes, edges=(edge,))
    await start(engine, given, flow)
    [first] = await claim_nodes(engine, given, 1)
    await end_nodes(engine, [first], output=b"[1, 2, 3, 4]")
    given["leases"] = [acts.plain_lease(one) for one in await claim_nodes(engine, given, 2)]
    given["outcomes"] = ["complete", "complete"]
    given["want"] = 1


async def arrange_failed_run(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    await start(engine, given, acts.a_crash_flow(given["round"]))
    await end_nodes(engine, await claim_nodes(engine, given, 1))
    left, right = await claim_nodes(engine, given, 2)
    await end_nodes(engine, [left], fail=True)
    await end_nodes(engine, [right])


async def arrange_running(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """One of two nodes runs, one is queued, one is blocked."""
    await start(engine, given, acts.a_crash_flow(given["round"]))
    await end_nodes(engine, await claim_nodes(engine, given, 1))
    await claim_nodes(engine, given, 1)


async def arrange_paused(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    await start(engine, given, acts.a_crash_flow(given["round"]))
    await EngineHarness(engine).runs.pause(str(given["run_id"]))
    await end_nodes(engine, await claim_nodes(engine, given, 1))


async def arrange_child(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A run that ended, and the node of another that does not know yet."""
    runs = EngineHarness(engine).runs
    inner = FlowDefinition(
        name="shop.crash_inner", version=given["round"], nodes=(Node(name="only", action=acts.NODE_ACTION),)
    )
    await runs.snapshot(inner)
    nodes = (
        Node(name="child", action=inner.name, kind=NodeKind.FLOW),
        Node(name="after", action=acts.NODE_ACTION),
    )
    edges = (Edge(upstream="child", downstream="after", is_order_only=True),)
    outer = FlowDefinition(name="shop.crash_outer", version=given["round"], nodes=nodes, edges=edges)
    given["run_id"] = int(await runs.start(outer))
    await end_nodes(engine, await claim_nodes(engine, given, 1))


async def arrange_wait(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    nodes = (
        Node(name="wait", action=f"event-{given['round']}", kind=NodeKind.WAIT),
        Node(name="after", action=acts.NODE_ACTION),
    )
    edges = (Edge(upstream="wait", downstream="after", bindings=(Binding(input_key="x"),)),)
    await start(engine, given, FlowDefinition(name="shop.crash_wait", version=given["round"], nodes=nodes, edges=edges))


async def arrange_approval(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    nodes = (
        Node(name="go", action="approval", kind=NodeKind.WAIT, config={"approval": True}),
        Node(name="after", action=acts.NODE_ACTION),
    )
    edges = (Edge(upstream="go", downstream="after", bindings=(Binding(input_key="x"),)),)
    await start(engine, given, FlowDefinition(name="shop.crash_ask", version=given["round"], nodes=nodes, edges=edges))


async def judge_started(case: Any) -> None:
    """Acknowledged: both runs, complete. Not acknowledged: both or none."""
    rows = await case.engine.database.fetch(
        "select r.run_id, r.state::text from holdfast.run r join holdfast.snapshot s on s.snapshot_id = r.snapshot_id"
        " join holdfast.flow f on f.flow_id = s.flow_id where f.name = 'shop.crash' and f.version = $1 order by 1",
        case.given["round"],
    )
    assert len(rows) in (0, 2) and all(row["state"] == "c" for row in rows)
    if case.said:
        assert [row["run_id"] for row in rows] == case.said[-1]


async def judge_keyed_run(case: Any) -> None:
    """Repeated under its key until it was acknowledged: one run, whatever happened to the first try."""
    rows = await case.engine.database.fetch(
        "select r.run_id, r.state::text from holdfast.run r where r.key = $1", f"run-{case.given['round']}"
    )
    assert [row["state"] for row in rows] == ["c"]
    assert case.said and {row["run_id"] for row in rows} == set(case.said)


async def judge_run(case: Any) -> None:
    """The run ended as its nodes did, and each of them once; what the victim was told stands."""
    runs, run_id = EngineHarness(case.engine).runs, str(case.given["run_id"])
    nodes = await runs.nodes(run_id)
    assert await runs.state(run_id) == ("failed" if "failed" in nodes.values() else "completed"), nodes
    assert set(nodes.values()) <= {"completed", "failed", "upstream_failed"}
    if case.said and "leases" in case.given:
        for lease, how in zip(case.given["leases"], case.given["outcomes"], strict=True):
            await _judge_report(case, lease, how)


async def _judge_report(case: Any, lease: list[Any], how: str) -> None:
    output = await case.engine.database.fetchval(
        "select output from holdfast.attempt where task_id = $1 and attempt = $2 and state = 'c'", lease[0], lease[1]
    )
    assert output == (acts.BY_VICTIM if how == "complete" else None)


async def judge_redriven(case: Any) -> None:
    """Run again once at most: what failed has one more attempt, never two; what completed outside keeps its one."""
    runs, run_id = EngineHarness(case.engine).runs, str(case.given["run_id"])
    state, attempts = await runs.state(run_id), await runs.attempts(run_id)
    assert (state, attempts["left"]) in (("completed", 2), ("failed", 1))
    assert (attempts["first"], attempts["right"]) == (1, 1)
    if case.said:
        assert state == "completed"


async def judge_canceled_run(case: Any) -> None:
    state = await EngineHarness(case.engine).runs.state(str(case.given["run_id"]))
    assert state in ("canceled", "completed")
    if case.said:
        assert state == "canceled"


async def judge_resumed(case: Any) -> None:
    """Resumed or not, and if it was, it went on to its end."""
    run_id = case.given["run_id"]
    row = await case.engine.database.fetchrow(
        "select state::text, paused_at is not null as is_paused from holdfast.run where run_id = $1", run_id
    )
    assert tuple(row) in (("c", False), ("o", True))
    if case.said:
        assert row["state"] == "c"
    if row["is_paused"]:
        await EngineHarness(case.engine).runs.cancel(str(run_id))


async def judge_approval(case: Any) -> None:
    """The answer, what it released and its row in the audit log: all of them, or the node still asks."""
    runs, run_id = EngineHarness(case.engine).runs, str(case.given["run_id"])
    recorded = await case.engine.database.fetchval(
        "select count(*) from holdfast.audit where verb = 'run.approve' and subject_id = $1", run_id
    )
    nodes = await runs.nodes(run_id)
    assert (recorded, nodes["go"]) in ((1, "completed"), (0, "running"))
    assert recorded or not case.said
    if await runs.state(run_id) == "open":
        await runs.cancel(run_id)


async def judge_signal(case: Any) -> None:
    """An event that was acknowledged arrived, once."""
    runs, run_id = EngineHarness(case.engine).runs, str(case.given["run_id"])
    nodes = await runs.nodes(run_id)
    if case.said:
        assert nodes == {"wait": "completed", "after": "completed"}
    if await runs.state(run_id) == "open":
        await runs.cancel(run_id)
