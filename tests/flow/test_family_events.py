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
async def family(dispatcher):
    """A run whose two sub-flows follow one another; the first has not begun."""
    await dispatcher.runs.snapshot(INNER)
    return await dispatcher.runs.start(a_family("one", "two", edges=("first>one", "one>two")))


@pytest.mark.parametrize("is_for_it", [True, False])
async def test_an_event_sent_before_a_sub_flow_begins_is_found_by_it_and_not_by_the_next(
    dispatcher, clock, family, is_for_it
):
    target = {"run_id": family} if is_for_it else {}
    await dispatcher.runs.signal("payment", 1, **target)
    await clock.advance(1)
    await step(dispatcher)
    await dispatcher.runs.repair_once()
    assert await dispatcher.runs.nodes(family) == {"first": "completed", "one": "completed", "two": "running"}
    await clock.advance(1)
    await dispatcher.runs.signal("payment", 2, **target)
    await dispatcher.runs.repair_once()
    assert await dispatcher.runs.state(family) == "completed"


async def test_an_event_of_before_the_topmost_run_answers_nothing_below_it(dispatcher, clock):
    await dispatcher.runs.snapshot(INNER)
    await dispatcher.runs.signal("payment", 1)
    await clock.advance(1)
    run = await dispatcher.runs.start(a_family("one", edges=("first>one",)))
    await step(dispatcher)
    await dispatcher.runs.repair_once()
    assert (await dispatcher.runs.nodes(run))["one"] == "running"


async def test_an_event_for_a_run_reaches_all_that_wait_below_it_and_names_them(dispatcher, clock):
    await dispatcher.runs.snapshot(INNER)
    flow = a_family("one", "two", edges=("first>one", "first>two"))
    run, other = await dispatcher.runs.start(flow), await dispatcher.runs.start(flow)
    await step(dispatcher)
    await clock.advance(1)
    engine = dispatcher.engine
    async with engine.database.transaction() as session:
        waits = await waits_of(session, engine.catalog, 1, wait_key="payment", run_id=int(run), limit=9)
    assert [wait.run_id for wait in waits] == [child for child, _ in await children(dispatcher, run)]
    await dispatcher.runs.signal("payment", 1, run_id=run)
    await dispatcher.runs.repair_once()
    assert await dispatcher.runs.state(run) == "completed"
    assert (await dispatcher.runs.nodes(other))["one"] == "running"


async def test_two_waits_of_one_run_at_once_take_an_event_each(dispatcher):
    nodes = tuple(Node(name=name, action="tick", kind=NodeKind.WAIT) for name in ("one", "two"))
    run = await dispatcher.runs.start(FlowDefinition(name="shop.ticks", nodes=nodes).validated())
    await dispatcher.runs.signal("tick", 1)
    assert sorted((await dispatcher.runs.nodes(run)).values()) == ["completed", "running"]
    await dispatcher.runs.signal("tick", 2)
    assert await dispatcher.runs.state(run) == "completed"


@pytest.mark.parametrize("key", ["x" * 300, "a\nb"])
async def test_a_wait_for_an_event_that_nobody_could_send_fails(dispatcher, key):
    flow = a_wait()
    edges = (*flow.edges, an_edge(f"{RUN_INPUT}>paid", "key>key"))
    keyed = FlowDefinition(name="shop.keyed", nodes=flow.nodes, edges=edges, inputs=(FlowInput(name="key"),))
    run = await dispatcher.runs.start(keyed.validated(), {"key": key})
    assert (await dispatcher.runs.nodes(run))["paid"] == "failed"
    [row] = await dispatcher.engine.database.fetch("select code from holdfast.failure")
    assert row["code"] == "invalid_key"


@pytest.mark.parametrize(("own", "expected"), [(None, 1), (7, 7)])
async def test_a_sub_flow_has_the_priority_of_its_run_or_else_of_its_node(dispatcher, own, expected):
    await dispatcher.runs.snapshot(a_sum(1))
    inner, after = a_parent().nodes
    node = a_node("inner", action=inner.action, kind=NodeKind.FLOW, config=inner.config, priority=1)
    flow = FlowDefinition(name="shop.parent", nodes=(node, after), edges=a_parent().edges).validated()
    await dispatcher.runs.start(flow, priority=own)
    assert await dispatcher.engine.database.fetchval("select priority from holdfast.live") == expected
