"""What flows as people write them ask of the core: whole lists as output, settings by kind, known ports, changes."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow, a_node, an_edge

from holdfast.core.flows import graph
from holdfast.core.flows.bindings import resolve_output
from holdfast.core.flows.changes import flow_changes
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.known_ports import check_against
from holdfast.core.flows.nodes import RUN_OUTPUT, FlowInput, NodeKind
from holdfast.core.flows.ports import Port, Slot, output_slot_of
from holdfast.errors import Invalid


def a_definition(*nodes, edges=(), **fields) -> FlowDefinition:
    return FlowDefinition(name="f", nodes=nodes or (a_node(),), edges=tuple(edges), **fields)


def code_of(work) -> str:
    with pytest.raises(Invalid) as caught:
        work()
    return caught.value.code


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("", Slot("")),
        ("[0]", Slot("", 0)),
        ("[12]", Slot("", 12)),
        ("x", Slot("x")),
        ("x[3]", Slot("x", 3)),
        ("[x]", None),
        ("[0]x", None),
        ("[", None),
        ("[01]", None),
        (None, None),
    ],
)
def test_places_of_an_output(key, slot):
    assert output_slot_of(key) == slot


def test_a_run_may_return_a_list_where_what_did_not_complete_is_null():
    edges = [an_edge(f"{name}>{RUN_OUTPUT}", f">[{place}]") for name, place in (("a", 2), ("b", 0), ("c", 1))]
    given = {"run_input": {}, "outputs": {"a": 1, "b": 2}, "absent": {"c"}}
    assert resolve_output(edges, **given) == [2, None, 1]
    assert resolve_output(edges[2:], **given) == [None]


@pytest.mark.parametrize("keys", [("", "x"), ("[0]", "x"), ("", "[0]"), ("[0]", "[0]"), ("", "")])
def test_a_whole_output_allows_no_part_of_another_kind(keys):
    nodes = (a_node("a"), a_node("b"))
    edges = [an_edge(f"{name}>{RUN_OUTPUT}", f">{key}") for name, key in zip("ab", keys, strict=True)]
    code = code_of(a_definition(*nodes, edges=edges).validated)
    assert code == "DAG_VALIDATION_BINDING_INPUT_KEY_CONFLICT"


@pytest.mark.parametrize("kind", [NodeKind.FLOW, NodeKind.WAIT])
@pytest.mark.parametrize(
    ("option", "value"), [("queue", "q"), ("priority", 1), ("max_retries", 1), ("timeout_seconds", 5.0)]
)
def test_a_node_without_a_task_has_no_settings_of_one(kind, option, value):
    allowed = {(NodeKind.FLOW, "priority"), (NodeKind.WAIT, "timeout_seconds")}
    definition = a_definition(a_node(kind=kind, **{option: value}))
    if (kind, option) in allowed:
        assert definition.validated()
    else:
        assert code_of(definition.validated) == "DAG_VALIDATION_NODE_INVALID"


@pytest.mark.parametrize("config", [{"approval": 1}, {"approval": "yes"}, {"on_timeout": "wait"}, {"on_timeout": None}])
def test_a_wait_is_told_only_what_it_knows(config):
    definition = a_definition(a_node(kind=NodeKind.WAIT, config=config))
    assert code_of(definition.validated) == "DAG_VALIDATION_NODE_INVALID"


def test_a_definition_has_a_size(monkeypatch):
    assert a_definition(a_node(config={"x": "y" * 100})).validated()
    monkeypatch.setattr(graph, "DEFINITION_BYTES_MAX", 100)
    code = code_of(a_definition(a_node(config={"x": "y" * 100})).validated)
    assert code == "DAG_VALIDATION_DEFINITION_TOO_LARGE"


def test_known_ports_are_checked_and_not_kept():
    definition = a_definition(a_node(config={"x": 1}))
    assert check_against(definition, {"a": (Port(key="x", is_required=True),)}) is definition
    assert definition.nodes[0].inputs is None
    missing = {"a": (Port(key="y", is_required=True), Port(key="x"))}
    assert code_of(lambda: check_against(definition, missing)) == "DAG_VALIDATION_BINDING_REQUIRED"
    assert code_of(lambda: check_against(definition, {"a": ()})) == "DAG_VALIDATION_BINDING_INPUT_KEY_MISSING"
    assert check_against(definition, {"a": None}) is definition


def test_a_port_is_a_list_only_where_it_is_addressed_as_one():
    nodes = (a_node("a"), a_node("b"), a_node("n"))
    ports = {"n": (Port(key="xs"),)}
    indexed = a_definition(*nodes, edges=[an_edge("a>n", ">xs[0]"), an_edge("b>n", ">xs[1]")])
    assert check_against(indexed, ports)
    twice = a_definition(*nodes, edges=[an_edge("a>n", ">xs"), an_edge("b>n", ">xs")])
    assert code_of(lambda: check_against(twice, ports)) == "DAG_VALIDATION_BINDING_INPUT_KEY_CONFLICT"


def test_what_a_node_declares_itself_stays():
    node = a_node("a", inputs=(Port(key="mine", is_required=True),), config={"mine": 1})
    assert check_against(a_definition(node), {"a": (Port(key="other"),)})


CHANGES = [
    (a_definition(), a_definition(), []),
    (a_definition(), a_definition(a_node("a"), a_node("b")), ["node b was added"]),
    (a_definition(a_node("a"), a_node("b")), a_definition(), ["node b was removed"]),
    (a_definition(), a_definition(a_node("a", queue="q", config={"x": 1})), ["node a has another config, queue"]),
    (a_definition(a_node("a"), a_node("b")), a_definition(a_node("b"), a_node("a")), ["the order of nodes"]),
    (
        a_definition(a_node("a"), a_node("b"), edges=[an_edge("a>b", "x>y")]),
        a_definition(a_node("a"), a_node("b"), edges=[an_edge("a>b", "x>z")]),
        ["edge a → b has another bindings"],
    ),
    (
        a_definition(inputs=(FlowInput(name="day"),)),
        a_definition(inputs=(FlowInput(name="day", is_required=False, default=3), FlowInput(name="n"))),
        ["input day has another is_required, default", "input n was added"],
    ),
]


@pytest.mark.parametrize(("before", "after", "changes"), CHANGES)
def test_changes_are_named(before, after, changes):
    assert flow_changes(before, after) == changes


def test_a_chain_differs_from_another_by_its_edges():
    assert flow_changes(a_flow("a>b"), a_flow("b>a")) == [
        "edge a → b was removed",
        "edge b → a was added",
    ]
