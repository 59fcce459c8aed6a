"""A recipe builds what `resolve_input` builds, or leaves it to it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.flows.bindings import resolve_input
from holdfast.core.flows.condition import Condition
from holdfast.core.flows.input_plan import input_plan_of
from holdfast.core.flows.nodes import RUN_INPUT, Binding, Edge, Node
from holdfast.core.flows.ports import Port
from holdfast.errors import Invalid

UPSTREAMS = ("a", "b", "c")
NUMBER = {name: number for number, name in enumerate(UPSTREAMS)}
KEYS = ("x", "y", "many", "many[0]", "many[2]")

bindings = st.builds(Binding, output_key=st.sampled_from(["", "value", "other"]), input_key=st.sampled_from(KEYS))
edges = st.lists(
    st.tuples(st.sampled_from((RUN_INPUT, *UPSTREAMS)), st.lists(bindings, max_size=3)),
    max_size=4,
    unique_by=lambda e: e[0],
)
outputs = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(st.integers(), st.just({"value": 1}), st.just({"value": 2, "other": [3]})) for name in UPSTREAMS
    },
)
configs = st.dictionaries(st.sampled_from(("x", "z", "many")), st.one_of(st.integers(), st.just([7])), max_size=2)


@given(edges, outputs, configs, st.booleans(), st.booleans())
def test_a_recipe_agrees_with_the_rule(drawn, given_outputs, config, is_declared, has_condition):
    incoming = [Edge(upstream=up, downstream="n", bindings=tuple(bound)) for up, bound in drawn]
    node = Node(
        name="n",
        action="act",
        config=config,
        inputs=(Port(key="many", is_list=True),) if is_declared else None,
        condition=Condition(upstream=RUN_INPUT) if has_condition else None,
    )
    run_input = {"value": "from the run", "other": None}
    built = input_plan_of(node, incoming, NUMBER).build(run_input, given_outputs)
    try:
        expected: Any = resolve_input(node, incoming, run_input=run_input, outputs=given_outputs)
    except Invalid:
        expected = None
    assert built is None or built == expected


def test_ordinary_nodes_need_nothing_else():
    incoming = [
        Edge(upstream=RUN_INPUT, downstream="n", bindings=(Binding(output_key="day", input_key="day"),)),
        *(Edge(upstream=up, downstream="n", bindings=(Binding(output_key="v", input_key="all"),)) for up in UPSTREAMS),
    ]
    node = Node(name="n", action="act", config={"i": 1}, inputs=(Port(key="all", is_list=True),))
    recipe = input_plan_of(node, incoming, NUMBER)
    assert sorted(recipe.upstreams) == [0, 1, 2]
    values = {name: {"v": number} for name, number in NUMBER.items()}
    assert recipe.build({"day": "monday"}, values) == {"i": 1, "day": "monday", "all": [0, 1, 2]}


@pytest.mark.parametrize("missing", UPSTREAMS)
def test_an_absent_upstream_is_left_to_the_rule(missing):
    incoming = [
        Edge(upstream=up, downstream=down, bindings=(Binding(input_key=up),))
        for up, down in pairwise((*UPSTREAMS, "n"))
    ]
    values = {name: 1 for name in UPSTREAMS if name != missing}
    assert input_plan_of(Node(name="n", action="act"), incoming, NUMBER).build({}, values) is None
