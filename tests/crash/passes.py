"""The scenarios of the sweep that concern passes over runs: deadlines of waits, sub-flows that go on, items that stand
still, cancels that somebody began. A pass that died is made good by the next one, and nothing is done twice."""

from __future__ import annotations

from typing import Any

from tests.crash import acts
from tests.crash.again import CHILDREN, arrange_failed_child
from tests.crash.case import Case
from tests.crash.runs import claim_nodes, end_nodes, start
from tests.crash.scenario import Scenario

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Edge, Node, NodeKind, TriggerRule
from holdfast.engine.audit import audit
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.runs.commands import cancel_run_in, retry_run
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness

WAIT_SECONDS = 60.0
COMPLETED_ITEMS = """
select n.state::text as state, array_agg(a.attempt order by a.task_id) as attempts
from holdfast.node n
join holdfast.attempt a on a.task_id between n.items_first and n.items_first + n.items - 1 and a.state = 'c'
where n.run_id = $1 and n.items > 0
group by 1
"""
LEAVE_STANDING = """
with gone as (
  delete from holdfast.live t
  using holdfast.node n
  where n.run_id = $1 and n.state = 'm' and t.task_id between n.items_first and n.items_first + n.items - 1
)
update holdfast.node n
set items_after = 1
where n.run_id = $1 and n.state = 'm'
"""
"""What a worker did that knew nothing of items which run again: it let none go behind the one that it ended."""


async def arrange_overdue(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A wait that fails at its deadline, one that is skipped then, and an approval; behind each a node that runs."""
    waits = (
        Node(name="late", action=f"late-{given['round']}", kind=NodeKind.WAIT, timeout_seconds=WAIT_SECONDS),
        Node(
            name="skipped",
            action=f"skipped-{given['round']}",
            kind=NodeKind.WAIT,
            timeout_seconds=WAIT_SECONDS,
            config={"on_timeout": "skip"},
        ),
        Node(
            name="asked",
            action="approval",
            kind=NodeKind.WAIT,
            timeout_seconds=WAIT_SECONDS,
            config={"approval": True},
        ),
    )
    behind = tuple(
        Node(name=f"after_{wait.name}", action=acts.NODE_ACTION, trigger_rule=TriggerRule.ALL_DONE) for wait in waits
    )
    edges = tuple(Edge(upstream=wait.name, downstream=f"after_{wait.name}", is_order_only=True) for wait in waits)
    flow = FlowDefinition(name="shop.crash_late", version=given["round"], nodes=(*waits, *behind), edges=edges)
    await start(engine, given, flow)
    await clock.advance(seconds=WAIT_SECONDS + 1)


async def judge_overdue(case: Case) -> None:
    """Each ended once, as it says of its deadline, with one failure and one letter; what is behind it ran once."""
    runs, run_id, database = EngineHarness(case.engine).runs, case.given["run_id"], case.engine.database
    behind = ("after_late", "after_skipped", "after_asked")
    ends = {"late": "failed", "skipped": "skipped", "asked": "failed"}
    assert await runs.nodes(str(run_id)) == ends | dict.fromkeys(behind, "completed")
    attempts = await runs.attempts(str(run_id))
    assert [attempts[name] for name in behind] == [1, 1, 1]
    told = await database.fetch(
        "select task_id - $1 - 1 as node_no, attempt from holdfast.failure where task_id between $1 and $1 + 10"
        " order by 1",
        run_id,
    )
    assert [tuple(row) for row in told] == [(0, 1), (2, 1)]
    letters = await database.fetch("select task_id - $1 - 1 from holdfast.dead_letter where run_id = $1", run_id)
    assert sorted(row[0] for row in letters) == [0, 2]
    assert await runs.state(str(run_id)) == "failed"


async def arrange_wanted_child(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A run whose sub-flow failed was run again, and whoever asked for it died before the sub-flow heard of it."""
    await arrange_failed_child(engine, clock, given)
    await retry_run(
        engine.database, engine.catalog, DEFAULT_TENANT_ID, given["run_id"], actor="ann", reason="fixed", only="child"
    )
    assert await engine.database.fetchval(
        "select is_wanted from holdfast.run where parent_run_id = $1", given["run_id"]
    )


async def judge_gone_on(case: Case) -> None:
    """The sub-flow ran again once, and the run with it."""
    runs, run_id = EngineHarness(case.engine).runs, case.given["run_id"]
    [child] = await case.engine.database.fetch(CHILDREN, run_id)
    assert await runs.nodes(str(run_id)) == {"list": "completed", "child": "completed", "after": "completed"}
    assert await runs.attempts(str(child["run_id"])) == {"first": 1, "second": 2}
    assert await recorded(case, "run.retry", child["run_id"]) == 1


async def arrange_unwanted_child(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """The same, and the run was canceled since: nobody waits for the sub-flow any more."""
    await arrange_wanted_child(engine, clock, given)
    await begin_cancel(engine, given["run_id"])


async def judge_let_be(case: Case) -> None:
    """Nothing of the sub-flow ran again, and the run ended as it was canceled."""
    runs, run_id = EngineHarness(case.engine).runs, case.given["run_id"]
    [child] = await case.engine.database.fetch(CHILDREN, run_id)
    assert (await runs.state(str(run_id)), child["state"]) == ("canceled", "f")
    assert await runs.attempts(str(child["run_id"])) == {"first": 1, "second": 1}
    assert await recorded(case, "run.retry", child["run_id"]) == 0


async def arrange_standing_items(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Three items that failed run again one after another; the worker that ended the first let no other go."""
    each = Node(
        name="each", action=acts.NODE_ACTION, kind=NodeKind.MAP, map_over="x", config={"x": [1, 2, 3]}, concurrency=1
    )
    await start(engine, given, FlowDefinition(name="shop.crash_stood", version=given["round"], nodes=(each,)))
    for _ in range(3):
        await end_nodes(engine, await claim_nodes(engine, given, 1), fail=True)
    await EngineHarness(engine).runs.retry(str(given["run_id"]))
    await end_nodes(engine, await claim_nodes(engine, given, 1))
    await engine.database.fetch(LEAVE_STANDING, given["run_id"])


async def judge_moved(case: Case) -> None:
    """Those that stood still ran, once each, and the first did not run again."""
    row = await case.engine.database.fetchrow(COMPLETED_ITEMS, case.given["run_id"])
    assert tuple(row) == ("c", [2, 2, 2])
    assert await EngineHarness(case.engine).runs.state(str(case.given["run_id"])) == "completed"


async def arrange_begun_cancel(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Somebody canceled a run and died before anything in it heard: a task that runs, one that is queued, items, a
    sub-flow with a task of its own."""
    runs = EngineHarness(engine).runs
    inner = FlowDefinition(
        name="shop.crash_below", version=given["round"], nodes=(Node(name="only", action=acts.NODE_ACTION),)
    )
    await runs.snapshot(inner)
    each = Node(
        name="each",
        action=acts.NODE_ACTION,
        kind=NodeKind.MAP,
        map_over="x",
        config={"x": [1, 2, 3, 4]},
        concurrency=2,
    )
    nodes = (
        Node(name="runs", action=acts.NODE_ACTION, priority=1),
        Node(name="queued", action=acts.NODE_ACTION),
        each,
        Node(name="child", action=inner.name, kind=NodeKind.FLOW),
        Node(name="after", action=acts.NODE_ACTION),
    )
    edges = tuple(Edge(upstream=one.name, downstream="after", is_order_only=True) for one in nodes[:-1])
    outer = FlowDefinition(name="shop.crash_dropped", version=given["round"], nodes=nodes, edges=edges)
    given["run_id"] = int(await runs.start(outer))
    await claim_nodes(engine, given, 1)
    await begin_cancel(engine, given["run_id"])


async def begin_cancel(engine: Engine, run_id: int) -> None:
    """The first transaction of a cancel, and nothing after it."""
    who = {"actor": "ann", "reason": "not wanted"}
    async with engine.database.transaction() as session:
        done = await cancel_run_in(session, engine.catalog, DEFAULT_TENANT_ID, run_id, **who)
        assert done is not None and done.has_tasks
        await audit(session, DEFAULT_TENANT_ID, [done.change], **who)


async def judge_dropped(case: Case) -> None:
    """Everything in it ended canceled, the sub-flow too, which was told once; nothing ran after the cancel."""
    runs, run_id = EngineHarness(case.engine).runs, case.given["run_id"]
    [child] = await case.engine.database.fetch(CHILDREN, run_id)
    assert (await runs.state(str(run_id)), child["state"]) == ("canceled", "x")
    assert set((await runs.nodes(str(run_id))).values()) == {"canceled"}
    assert set((await runs.nodes(str(child["run_id"]))).values()) == {"canceled"}
    ran = await case.engine.database.fetchval(
        "select count(*) from holdfast.attempt a where a.state = 'c' and a.task_id between $1 and $2",
        run_id,
        child["run_id"] + 1,
    )
    assert ran == 0
    assert [await recorded(case, "run.cancel", one) for one in (run_id, child["run_id"])] == [1, 1]


async def recorded(case: Case, verb: str, run_id: int) -> int:
    count = await case.engine.database.fetchval(
        "select count(*) from holdfast.audit where verb = $1 and subject_id = $2", verb, str(run_id)
    )
    return int(count)


SCENARIOS = [
    Scenario(name="expire_waits", arrange=arrange_overdue, judge=judge_overdue, statements_min=25),
    Scenario(name="retry_children", arrange=arrange_wanted_child, judge=judge_gone_on, statements_min=15),
    Scenario(name="unwant_child", arrange=arrange_unwanted_child, judge=judge_let_be, statements_min=6),
    Scenario(name="move_items", arrange=arrange_standing_items, judge=judge_moved, statements_min=6),
    Scenario(name="finish_cancels", arrange=arrange_begun_cancel, judge=judge_dropped, statements_min=30),
]
ACT_OF = {"unwant_child": "retry_children"}
