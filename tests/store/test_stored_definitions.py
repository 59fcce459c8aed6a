"""A plan read from a stored definition is the plan of that definition."""

from __future__ import annotations

import json

import pytest

from holdfast.core.flows.condition import Condition
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Binding, Edge, FlowInput, Node, NodeKind, TriggerRule
from holdfast.core.flows.plan import Plan
from holdfast.errors import Invalid
from holdfast.store import flow_plans
from holdfast.store.flow_plans import read_plan
from holdfast_bench.flow import a_chain, a_fan


def an_odd_flow() -> FlowDefinition:
    """One of everything."""
    return FlowDefinition(
        name="odd",
        version=3,
        nodes=(
            Node(name="a", action="act", config={"x": [1]}),
            Node(name="m", action="act", kind=NodeKind.MAP, map_over="items", concurrency=2),
            Node(name="w", action="event", kind=NodeKind.WAIT, timeout_seconds=5.0),
            Node(name="j", action="act", trigger_rule=TriggerRule.ALL_DONE, condition=Condition(upstream="w")),
        ),
        edges=(
            Edge(upstream=RUN_INPUT, downstream="a", bindings=(Binding(output_key="day", input_key="day"),)),
            Edge(upstream="a", downstream="m", bindings=(Binding(output_key="rows", input_key="items"),)),
            Edge(upstream="a", downstream="w", is_order_only=True),
            Edge(upstream="m", downstream="j", bindings=(Binding(input_key="all"),)),
            Edge(upstream="w", downstream="j", bindings=(Binding(output_key="who", input_key="who"),)),
            Edge(upstream="j", downstream=RUN_OUTPUT, bindings=(Binding(output_key="sum", input_key=""),)),
        ),
        inputs=(FlowInput(name="day", is_required=False, default="today"),),
    ).validated()


@pytest.mark.parametrize("is_giant", [False, True], ids=["plain", "giant"])
@pytest.mark.parametrize("definition", [an_odd_flow(), a_fan(20), a_chain(5)], ids=lambda one: one.name)
def test_it_is_the_plan_of_its_definition(definition, is_giant, monkeypatch):
    if is_giant:
        monkeypatch.setattr(flow_plans, "GIANT_BYTES", 0)
        monkeypatch.setattr(flow_plans, "BLOCK_NODES", 3)
    made, read = Plan.of(definition), read_plan(json.dumps(definition.to_json()).encode())
    for name in ("name", "version", "inputs", "names", "kinds", "rules", "is_simple", "is_task", "number", "roots"):
        assert getattr(read, name) == getattr(made, name), name
    assert tuple(read.nodes) == tuple(made.nodes) == definition.nodes
    assert [*reversed(read.nodes)] == [*reversed(made.nodes)] and read.nodes[-2:] == [*made.nodes[-2:]]
    assert list(read.upstream) == list(made.upstream) and list(read.downstream) == list(made.downstream)
    incoming = definition.incoming()
    for name in (*made.names, RUN_OUTPUT):
        assert read.incoming(name) == made.incoming(name) == incoming[name]
    assert read.definition == definition


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"[]",
        b'{"name": "x"}',
        b'{"name": "x", "version": 1, "nodes": [{}]}',
        b'{"name": "x", "version": 1, "nodes": 7}',
    ],
)
def test_what_is_no_definition_is_refused(stored):
    with pytest.raises(Invalid) as refused:
        read_plan(stored)
    assert refused.value.code == "DAG_VALIDATION_DEFINITION_SNAPSHOT_INVALID"
