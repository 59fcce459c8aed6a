"""Events and priorities in sub-flows: what is sent to a run reaches the runs it starts, also before it does."""

from __future__ import annotations

import pytest
from tests.core.flows import a_node, a_parent, a_sum, a_wait, an_edge, an_order_edge
from tests.flow.steps import step
from tests.flow.test_sub_flows import children

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import RUN_INPUT, FlowInput, Node, NodeKind
from holdfast.engine.queries.waiting import waits_of

INNER = FlowDefinition(name="shop.inner", nodes=(Node(name="paid", action="payment", kind=NodeKind.WAIT),)).validated()


def a_family(*names, edges):
    """A first node, and sub-flows that wait for a payment each."""
    nodes = (a_node("first"), *(a_node(name, action="shop.inner", kind=NodeKind.FLOW) for name in names))
    return FlowDefinition(name="shop.family", nodes=nodes, edges=tuple(map(an_order_edge, edges))).validated()


@pytest.fixture
async def family(harness):
    """A run whose two sub-flows follow one another; the first has not begun."""
    await harness.runs.snapshot(INNER)
    return await harness.runs.start(a_family("one", "two", edges=("first>one", "one>two")))


@pytest.mark.parametrize("is_for_it", [True, False])
async def test_an_event_sent_before_a_sub_flow_begins_is_found_by_it_and_not_by_the_next(
    harness, clock, family, is_for_it
):
    target = {"run_id": family} if is_for_it else {}
    await harness.runs.signal("payment", 1, **target)
    await clock.advance(1)
    await step(harness)
    await harness.runs.repair_once()
    assert await harness.runs.nodes(family) == {"first": "completed", "one": "completed", "two": "running"}
    await clock.advance(1)
    await harness.runs.signal("payment", 2, **target)
    await harness.runs.repair_once()
    assert await harness.runs.state(family) == "completed"


async def test_an_event_of_before_the_topmost_run_answers_nothing_below_it(harness, clock):
    await harness.runs.snapshot(INNER)
    await harness.runs.signal("payment", 1)
    await clock.advance(1)
    run = await harness.runs.start(a_family("one", edges=("first>one",)))
    await step(harness)
    await harness.runs.repair_once()
    assert (await harness.runs.nodes(run))["one"] == "running"


async def test_an_event_for_a_run_reaches_all_that_wait_below_it_and_names_them(harness, clock):
    await harness.runs.snapshot(INNER)
    flow = a_family("one", "two", edges=("first>one", "first>two"))
    run, other = await harness.runs.start(flow), await harness.runs.start(flow)
    await step(harness)
    await clock.advance(1)
    engine = harness.engine
    async with engine.database.transaction() as session:
        waits = await waits_of(session, engine.catalog, 1, wait_key="payment", run_id=int(run), limit=9)
    assert [wait.run_id for wait in waits] == [child for child, _ in await children(harness, run)]
    await harness.runs.signal("payment", 1, run_id=run)
    await harness.runs.repair_once()
    assert await harness.runs.state(run) == "completed"
    assert (await harness.runs.nodes(other))["one"] == "running"


async def test_two_waits_of_one_run_at_once_take_an_event_each(harness):
    nodes = tuple(Node(name=name, action="tick", kind=NodeKind.WAIT) for name in ("one", "two"))
    run = await harness.runs.start(FlowDefinition(name="shop.ticks", nodes=nodes).validated())
    await harness.runs.signal("tick", 1)
    assert sorted((await harness.runs.nodes(run)).values()) == ["completed", "running"]
    await harness.runs.signal("tick", 2)
    assert await harness.runs.state(run) == "completed"


@pytest.mark.parametrize("key", ["x" * 300, "a\nb"])
async def test_a_wait_for_an_event_that_nobody_could_send_fails(harness, key):
    flow = a_wait()
    edges = (*flow.edges, an_edge(f"{RUN_INPUT}>paid", "key>key"))
    keyed = FlowDefinition(name="shop.keyed", nodes=flow.nodes, edges=edges, inputs=(FlowInput(name="key"),))
    run = await harness.runs.start(keyed.validated(), {"key": key})
    assert (await harness.runs.nodes(run))["paid"] == "failed"
    [row] = await harness.engine.database.fetch("select code from holdfast.failure")
    assert row["code"] == "invalid_key"


@pytest.mark.parametrize(("own", "expected"), [(None, 1), (7, 7)])
async def test_a_sub_flow_has_the_priority_of_its_run_or_else_of_its_node(harness, own, expected):
    await harness.runs.snapshot(a_sum(1))
    inner, after = a_parent().nodes
    node = a_node("inner", action=inner.action, kind=NodeKind.FLOW, config=inner.config, priority=1)
    flow = FlowDefinition(name="shop.parent", nodes=(node, after), edges=a_parent().edges).validated()
    await harness.runs.start(flow, priority=own)
    assert await harness.engine.database.fetchval("select priority from holdfast.live") == expected
