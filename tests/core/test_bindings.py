"""A node's input from config, run input and upstream outputs; every fault with its own code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.flows import a_node, an_edge, an_order_edge

from holdfast.core.flows.bindings import accept_run_input, condition_holds, map_inputs, resolve_input, resolve_output
from holdfast.core.flows.condition import Condition, Operator, holds
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, FlowInput, NodeKind, TriggerRule
from holdfast.core.flows.ports import Port
from holdfast.errors import Invalid

LIST = (Port(key="images", is_list=True),)
RUN = {"day": "monday", "limit": None}


def resolved(*edges, outputs=None, absent=(), **fields):
    node = a_node("n", **fields)
    return resolve_input(node, edges, run_input=RUN, outputs=outputs or {}, absent=absent)


def code_of(call, *args, **kwargs):
    with pytest.raises(Invalid) as caught:
        call(*args, **kwargs)
    return caught.value.code


@pytest.mark.parametrize(
    ("edges", "fields", "expected"),
    [
        ([], {}, {}),
        ([], {"config": {"x": 1}}, {"x": 1}),
        ([an_edge("a>n", ">x")], {}, {"x": {"k": 1, "l": [2]}}),
        ([an_edge("a>n", "k>x", "l>y")], {"config": {"z": 0}}, {"x": 1, "y": [2], "z": 0}),
        ([an_edge(f"{RUN_INPUT}>n", "day>day", "limit>limit")], {}, {"day": "monday", "limit": None}),
        ([an_edge(f"{RUN_INPUT}>n", ">all")], {}, {"all": RUN}),
        ([an_order_edge("a>n")], {}, {}),
        ([an_edge("a>n", "k>images"), an_edge("b>n", ">images")], {"inputs": LIST}, {"images": [1, "b"]}),
        ([an_edge("b>n", ">images"), an_edge("a>n", "k>images")], {"inputs": LIST}, {"images": ["b", 1]}),
        ([an_edge("a>n", "k>images[1]"), an_edge("b>n", ">images[0]")], {}, {"images": ["b", 1]}),
        ([an_edge("a>n", "k>images[9]"), an_edge("b>n", ">images[4]")], {}, {"images": ["b", 1]}),
        ([an_edge("a>n", "k>images[2]"), an_edge("b>n", ">images")], {}, {"images": [1, "b"]}),
        ([an_edge("a>n", "k>images"), an_edge("b>n", ">images[1]")], {}, {"images": [1, "b"]}),
        ([an_edge("a>n", "l>images")], {"inputs": LIST}, {"images": [[2]]}),
        ([an_edge("a>n", "k>images")], {"inputs": LIST, "config": {"images": ["s"]}}, {"images": ["s", 1]}),
        ([an_edge("a>n", "k>images[0]")], {"config": {"images[1]": "s"}}, {"images": [1, "s"]}),
        ([], {"inputs": LIST, "config": {"images": []}}, {"images": []}),
    ],
)
def test_an_input_is_put_together(edges, fields, expected):
    assert resolved(*edges, outputs={"a": {"k": 1, "l": [2]}, "b": "b"}, **fields) == expected


@pytest.mark.parametrize(
    ("outputs", "absent", "code"),
    [
        ({}, (), "UPSTREAM_OUTPUT_MISSING"),
        ({}, ("a",), "UPSTREAM_OUTPUT_MISSING"),
        ({"a": None}, (), "UPSTREAM_OUTPUT_INVALID"),
        ({"a": [1]}, (), "UPSTREAM_OUTPUT_INVALID"),
        ({"a": {"other": 1}}, (), "BINDING_OUTPUT_KEY_MISSING"),
    ],
)
def test_a_fault_of_an_upstream_output_has_its_own_code(outputs, absent, code):
    with pytest.raises(Invalid) as caught:
        resolved(an_edge("a>n", "k>x"), outputs=outputs, absent=absent)
    assert caught.value.code == f"DAG_VALIDATION_{code}"
    assert "a → n" in caught.value.detail
    assert caught.value.fields["node"] == "n"


@pytest.mark.parametrize(
    ("edges", "config", "code"),
    [
        ([an_edge("a>n", ">x", ">x")], {}, "BINDING_INPUT_KEY_CONFLICT"),
        ([an_edge("a>n", ">x[0")], {}, "BINDING_INPUT_KEY_MISSING"),
        ([an_edge("a>n", ">x[0]")], {"x": 3}, "BINDING_LIST_PAYLOAD_INVALID"),
    ],
)
def test_a_snapshot_that_was_never_validated_still_fails_clearly(edges, config, code):
    assert code_of(resolved, *edges, outputs={"a": 1}, config=config) == f"DAG_VALIDATION_{code}"


@pytest.mark.parametrize("rule", [TriggerRule.ALL_DONE, TriggerRule.ONE_SUCCESS])
def test_an_absent_upstream_leaves_its_keys_out_and_is_null_at_its_place_of_a_list(rule):
    edges = [an_edge("gone>n", ">x", ">images[0]", ">alone[0]"), an_edge("a>n", ">y", ">images[1]")]
    given_ = resolved(*edges, outputs={"a": 1}, absent={"gone"}, trigger_rule=rule)
    assert given_ == {"y": 1, "images": [None, 1], "alone": [None]}


def test_a_lost_output_is_a_fault_under_any_rule():
    code = code_of(resolved, an_edge("a>n", ">x"), absent={"b"}, trigger_rule=TriggerRule.ALL_DONE)
    assert code == "DAG_VALIDATION_UPSTREAM_OUTPUT_MISSING"


@given(st.lists(st.booleans(), max_size=8))
def test_absence_never_reorders_an_appended_list(presence):
    edges = [an_edge(f"u{number}>n", ">images") for number in range(len(presence))]
    outputs = {f"u{number}": number for number, is_there in enumerate(presence) if is_there}
    absent = {edge.upstream for edge in edges} - set(outputs)
    built = resolved(*edges, outputs=outputs, absent=absent, inputs=LIST, trigger_rule=TriggerRule.ALL_DONE)
    assert built.get("images", []) == list(outputs.values())


def output_of(*edges, outputs=None, absent=()):
    return resolve_output(edges, run_input=RUN, outputs=outputs or {}, absent=absent)


def test_a_run_returns_what_its_output_edges_say():
    assert output_of() is None
    assert output_of(an_edge(f"a>{RUN_OUTPUT}", ">"), outputs={"a": 7}) == 7
    assert output_of(an_edge(f"a>{RUN_OUTPUT}", ">"), absent={"a"}) is None
    gone = [an_edge(f"gone>{RUN_OUTPUT}", ">x", ">xs[0]"), an_edge(f"a>{RUN_OUTPUT}", ">xs[1]")]
    assert output_of(*gone, outputs={"a": 7}, absent={"gone"}) == {"x": None, "xs": [None, 7]}
    parts = [an_edge(f"a>{RUN_OUTPUT}", ">x", ">xs[0]"), an_edge(f"{RUN_INPUT}>{RUN_OUTPUT}", "day>day")]
    assert output_of(*parts, outputs={"a": 7}) == {"x": 7, "xs": [7], "day": "monday"}


INPUTS = (FlowInput(name="day"), FlowInput(name="limit", is_required=False, default=5))


def test_a_run_input_is_completed_by_defaults():
    assert accept_run_input(INPUTS, {"day": 1}) == {"day": 1, "limit": 5}
    assert accept_run_input(INPUTS, {"day": 1, "limit": None}) == {"day": 1, "limit": None}


@pytest.mark.parametrize(("given_", "word"), [({}, "MISSING"), ({"day": 1, "dya": 2}, "UNKNOWN")])
def test_a_run_input_with_wrong_names_is_refused(given_, word):
    assert code_of(accept_run_input, INPUTS, given_) == f"DAG_VALIDATION_RUN_INPUT_{word}"


def test_a_map_node_has_one_input_per_item():
    node = a_node(kind=NodeKind.MAP, map_over="x")
    assert map_inputs(node, {"x": [1, 2], "y": 0}) == [{"x": 1, "y": 0}, {"x": 2, "y": 0}]
    assert map_inputs(node, {"x": []}) == []


@pytest.mark.parametrize("value", [None, "text", {"a": 1}, [0] * 100_001])
def test_a_map_over_no_list_is_the_nodes_failure(value):
    node = a_node(kind=NodeKind.MAP, map_over="x")
    assert code_of(map_inputs, node, {"x": value}) == "DAG_VALIDATION_MAP_LIST_INVALID"


@pytest.mark.parametrize(
    ("operator", "limit", "value", "expected"),
    [
        (Operator.TRUTHY, None, [0], True),
        (Operator.TRUTHY, None, 0, False),
        (Operator.FALSY, None, "", True),
        (Operator.EQUALS, 1, 1.0, True),
        (Operator.EQUALS, 1, True, False),
        (Operator.EQUALS, None, None, True),
        (Operator.NOT_EQUALS, "a", "b", True),
        (Operator.LESS, 2, 1, True),
        (Operator.LESS_OR_EQUAL, 2, 2, True),
        (Operator.GREATER, "a", "b", True),
        (Operator.GREATER_OR_EQUAL, 3, 2, False),
        (Operator.IN, ["a", 1], True, False),
        (Operator.IN, ["a", 1], 1, True),
        (Operator.CONTAINS, "k", {"k": 0}, True),
        (Operator.CONTAINS, 2, [1], False),
    ],
)
def test_a_condition_compares(operator, limit, value, expected):
    assert holds(Condition(upstream="a", operator=operator, value=limit), value) is expected


@pytest.mark.parametrize(
    ("operator", "limit", "value"),
    [
        (Operator.LESS, 1, "a"),
        (Operator.LESS, 1, True),
        (Operator.GREATER, None, 1),
        (Operator.IN, "abc", "a"),
        (Operator.CONTAINS, "a", "abc"),
    ],
)
def test_what_cannot_be_compared_is_a_fault(operator, limit, value):
    condition = Condition(upstream="a", operator=operator, value=limit)
    assert code_of(holds, condition, value) == "DAG_VALIDATION_CONDITION_INVALID"
    edges = [an_order_edge("a>n")]
    assert code_of(resolved, *edges, outputs={"a": value}, condition=condition) == "DAG_VALIDATION_CONDITION_INVALID"


def test_a_condition_on_an_absent_value_does_not_hold():
    node = a_node("n", condition=Condition(upstream="a", operator=Operator.FALSY), trigger_rule=TriggerRule.ALL_DONE)
    assert not condition_holds(node, run_input={}, outputs={}, absent={"a"})
    assert condition_holds(node, run_input={}, outputs={"a": 0})
    assert condition_holds(a_node(), run_input={}, outputs={})
