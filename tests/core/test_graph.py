"""A definition is refused before anything is stored, keeps its JSON form, and knows its order and reach."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.flows import a_diamond, a_flow, a_node, an_edge, an_order_edge, flows, lines_run

from holdfast.core.flows import graph_check
from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Binding, Edge, FlowInput, NodeKind, TriggerRule
from holdfast.core.flows.ports import Port, Slot, slot_of
from holdfast.core.values.json_values import is_plain
from holdfast.errors import Invalid

LISTED = (Port(key="images", is_list=True), Port(key="title"))


def a_definition(*nodes, edges=(), **fields):
    return FlowDefinition(**{"name": "shop.nightly", "nodes": nodes or (a_node(),), "edges": tuple(edges)} | fields)


def refused(definition):
    with pytest.raises(Invalid) as caught:
        definition.validated()
    assert caught.value.category == "validation"
    return caught.value


A, B = a_node("a"), a_node("b")
DAY = FlowInput(name="day")


@pytest.mark.parametrize(
    ("definition", "code"),
    [
        (a_definition(name="not a name"), "NAME_INVALID"),
        (a_definition(a_node("$input")), "NAME_INVALID"),
        (a_definition(a_node("")), "NAME_INVALID"),
        (a_definition(a_node("x" * 129)), "NAME_INVALID"),
        (a_definition(a_node(None)), "NAME_INVALID"),
        (a_definition(a_node(action="a b")), "NAME_INVALID"),
        (a_definition(version=0), "VERSION_INVALID"),
        (a_definition(version=True), "VERSION_INVALID"),
        (a_definition(version="3"), "VERSION_INVALID"),
        (FlowDefinition(name="x", nodes=()), "NODES_EMPTY"),
        (a_definition(A, a_node("a", action="other")), "NODE_DUPLICATE"),
        (a_definition(inputs=(DAY, DAY)), "INPUT_INVALID"),
        (a_definition(inputs=(FlowInput(name=""),)), "INPUT_INVALID"),
        (a_definition(inputs=(FlowInput(name="x", default={1}),)), "INPUT_INVALID"),
        (a_definition(inputs=tuple(FlowInput(name=f"i{n}") for n in range(1001))), "INPUTS_TOO_MANY"),
        (a_definition(a_node(config={"x": float("nan")})), "CONFIG_INVALID"),
        (a_definition(a_node(config={"x": (1,)})), "CONFIG_INVALID"),
        (a_definition(a_node(config=[1])), "CONFIG_INVALID"),
        (a_definition(a_node(inputs=(Port(key="a"), Port(key="a")))), "PORT_INVALID"),
        (a_definition(a_node(inputs=(Port(key="a[0]"),))), "PORT_INVALID"),
        (a_definition(a_node(inputs=("a",))), "PORT_INVALID"),
        (a_definition(a_node(outputs=("",))), "PORT_INVALID"),
        (a_definition(A, B, edges=[an_edge("z>b", ">x")]), "NODE_NOT_FOUND"),
        (a_definition(A, B, edges=[an_edge(f"{RUN_OUTPUT}>b", ">x")]), "NODE_NOT_FOUND"),
        (a_definition(A, B, edges=[an_edge("a>z", ">x")]), "DOWNSTREAM_NODE_NOT_FOUND"),
        (a_definition(A, B, edges=[an_edge(f"a>{RUN_INPUT}", ">x")]), "DOWNSTREAM_NODE_NOT_FOUND"),
        (a_definition(A, edges=[an_order_edge("a>a")]), "EDGE_SELF"),
        (a_definition(A, B, edges=[an_order_edge("a>b"), an_edge("a>b", ">x")]), "EDGE_DUPLICATE"),
        (a_definition(A, B, edges=[an_edge("a>b", ">x", is_order_only=True)]), "EDGE_INVALID"),
        (a_definition(A, edges=[an_order_edge(f"{RUN_INPUT}>a")]), "EDGE_INVALID"),
        (a_definition(A, edges=[an_order_edge(f"a>{RUN_OUTPUT}")]), "EDGE_INVALID"),
        (a_definition(A, B, edges=[an_order_edge("a>b"), an_order_edge("b>a")]), "CYCLE"),
        (a_definition(A, B, edges=[an_edge("a>b")]), "BINDING_REQUIRED"),
        (a_definition(a_node(inputs=(Port(key="x", is_required=True),))), "BINDING_REQUIRED"),
        (a_definition(a_node(kind=NodeKind.MAP, map_over="x")), "BINDING_REQUIRED"),
        (
            a_definition(a_node("a", outputs=("rows",)), B, edges=[an_edge("a>b", "row>x")]),
            "BINDING_OUTPUT_KEY_MISSING",
        ),
        (a_definition(A, edges=[an_edge(f"{RUN_INPUT}>a", "day>x")]), "BINDING_OUTPUT_KEY_MISSING"),
        (a_definition(A, B, edges=[an_edge("a>b", "\n>x")]), "BINDING_OUTPUT_KEY_MISSING"),
        (
            a_definition(
                a_node("a", kind=NodeKind.MAP, map_over="x", config={"x": []}), B, edges=[an_edge("a>b", "k>x")]
            ),
            "BINDING_OUTPUT_KEY_MISSING",
        ),
        (a_definition(A, B, edges=[an_edge("a>b", ">")]), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(A, B, edges=[an_edge("a>b", ">x[-1]")]), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(A, B, edges=[an_edge("a>b", ">x[0][1]")]), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(A, B, edges=[an_edge("a>b", ">x[100000]")]), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(A, a_node("b", inputs=LISTED), edges=[an_edge("a>b", ">y")]), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(A, a_node("b", inputs=LISTED), edges=[an_edge("a>b", ">title[0]")]), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(a_node(inputs=LISTED, config={"y": 1})), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(a_node(config={"x[": 1})), "BINDING_INPUT_KEY_MISSING"),
        (a_definition(A, B, edges=[an_edge("a>b", "k>x", "l>x")]), "BINDING_INPUT_KEY_CONFLICT"),
        (a_definition(A, a_node("b", config={"x": 1}), edges=[an_edge("a>b", ">x")]), "BINDING_INPUT_KEY_CONFLICT"),
        (a_definition(A, B, edges=[an_edge("a>b", "k>x[1]", "l>x[1]")]), "BINDING_INPUT_KEY_CONFLICT"),
        (a_definition(A, B, edges=[an_edge("a>b", "k>x", "l>x[0]")]), "BINDING_INPUT_KEY_CONFLICT"),
        (a_definition(a_node(config={"x": [1, 2], "x[1]": 3})), "BINDING_INPUT_KEY_CONFLICT"),
        (a_definition(A, edges=[an_edge(f"a>{RUN_OUTPUT}", "k>", "l>x")]), "BINDING_INPUT_KEY_CONFLICT"),
        (a_definition(A, edges=[an_edge(f"a>{RUN_OUTPUT}", "k>x", "l>x")]), "BINDING_INPUT_KEY_CONFLICT"),
        (a_definition(a_node(inputs=LISTED, config={"images": "x"})), "BINDING_LIST_PAYLOAD_INVALID"),
        (a_definition(a_node(config={"x": 1, "x[0]": 2})), "BINDING_LIST_PAYLOAD_INVALID"),
        (a_definition(a_node("a", condition=Condition(upstream="b")), B), "CONDITION_INVALID"),
        (a_definition(a_node(condition=Condition(upstream=RUN_INPUT, operator="like"))), "CONDITION_INVALID"),
        (a_definition(a_node(condition=Condition(upstream=RUN_INPUT, value={1}))), "CONDITION_INVALID"),
        (
            a_definition(a_node(condition=Condition(upstream=RUN_INPUT, output_key="day"))),
            "BINDING_OUTPUT_KEY_MISSING",
        ),
    ],
)
def test_a_fault_has_its_own_code(definition, code):
    assert refused(definition).code == f"DAG_VALIDATION_{code}"


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "task"},
        {"trigger_rule": "all_done"},
        {"kind": NodeKind.MAP},
        {"map_over": "x"},
        {"concurrency": 2},
        {"kind": NodeKind.MAP, "map_over": "x", "concurrency": 0},
        {"queue": "a b"},
        {"priority": 10},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"timeout_seconds": "1m"},
        {"max_retries": -1},
        {"max_retries": 1.5},
    ],
)
def test_an_option_out_of_bounds_is_named(fields):
    error = refused(a_definition(a_node("a", **fields)))
    assert error.code == "DAG_VALIDATION_NODE_INVALID"
    assert error.fields["field"] in {*fields, "map_over"}
    assert "Node a" in error.detail


@pytest.mark.parametrize(
    ("limit", "definition"),
    [("NODES", a_flow("a>b b>c")), ("EDGES", a_flow("a>b b>c a>c")), ("BINDINGS", None)],
)
def test_too_many_are_refused(monkeypatch, limit, definition):
    definition = definition or a_definition(A, B, edges=[an_edge("a>b", "k>x", "l>y", "m>z")])
    monkeypatch.setattr(graph_check, f"{limit}_MAX", 2)
    assert refused(definition).code == f"DAG_VALIDATION_{limit}_TOO_MANY"


def test_the_limits_are_as_promised():
    assert (graph_check.NODES_MAX, graph_check.EDGES_MAX) == (100_000, 1_000_000)


def test_a_refusal_names_node_and_edge():
    error = refused(a_definition(A, B, edges=[an_edge("a>b", "k>x", "l>x")]))
    assert "b" in error.detail and "a → b" in error.detail
    assert error.fields == {"node": "b", "input_key": "x"}


def test_a_cycle_is_named_in_the_direction_of_its_edges():
    edges = [an_order_edge(ends) for ends in ("a>b", "b>c", "c>d", "d>b", "d>e")]
    error = refused(a_definition(*map(a_node, "abcde"), edges=edges))
    cycle = error.fields["cycle"]
    assert sorted(cycle) == ["b", "c", "d"]
    assert " → ".join([*cycle, cycle[0]]) in error.detail
    assert {f"{one}>{other}" for one, other in pairwise(cycle)} <= {"b>c", "c>d", "d>b"}


def test_a_long_cycle_is_shortened():
    names = [f"n{number}" for number in range(1000)]
    edges = [an_order_edge(f"{one}>{other}") for one, other in zip(names, [*names[1:], names[0]], strict=True)]
    error = refused(a_definition(*map(a_node, names), edges=edges))
    assert "…" in error.detail and len(error.detail) < 200


@pytest.mark.parametrize(
    "definition",
    [
        a_definition(),
        a_definition(A, B, edges=[an_edge("a>b", ">x[0]", "k>x[7]", "l>x")]),
        a_definition(A, a_node("b", inputs=LISTED), edges=[an_edge("a>b", "k>images", "l>images", ">title")]),
        a_definition(a_node(config={"x[1]": 1, "x": [0]})),
        a_definition(inputs=(DAY,), edges=[an_edge(f"{RUN_INPUT}>a", "day>day", ">everything")]),
        a_definition(edges=[an_edge(f"a>{RUN_OUTPUT}", ">")]),
        a_definition(edges=[an_edge(f"{RUN_INPUT}>{RUN_OUTPUT}", ">x")]),
        a_definition(a_node(kind=NodeKind.MAP, map_over="x", config={"x": [1]}, concurrency=5)),
        a_definition(A, a_node("b", condition=Condition(upstream="a", value=1)), edges=[an_order_edge("a>b")]),
        a_diamond(),
    ],
)
def test_a_sound_definition_is_accepted_and_survives_json(definition):
    assert definition.validated() is definition
    stored = json.loads(json.dumps(definition.to_json()))
    assert FlowDefinition.from_json(stored) == definition
    assert is_plain(stored)


A_FULL_NODE = a_node(
    "b",
    kind=NodeKind.MAP,
    config={"x": [1], "y": {"z": None}},
    inputs=(Port(key="x", is_required=True), Port(key="y"), Port(key="v", is_list=True)),
    outputs=("rows",),
    trigger_rule=TriggerRule.ONE_SUCCESS,
    condition=Condition(upstream="a", output_key="ok", operator=Operator.EQUALS, value=True),
    map_over="x",
    concurrency=3,
    queue="mail",
    priority=2,
    timeout_seconds=2,
    max_retries=0,
)


def test_every_field_survives_json():
    inputs = (DAY, FlowInput(name="limit", is_required=False, default=5))
    definition = a_definition(A, A_FULL_NODE, edges=[an_edge("a>b", "k>v")], inputs=inputs, version=7)
    assert FlowDefinition.from_json(definition.validated().to_json()) == definition
    assert type(definition.to_json()["nodes"][1]["kind"]) is str


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        "{}",
        {},
        {"name": "x", "version": 1},
        {"name": "x", "version": 1, "nodes": [3]},
        {"name": "x", "version": 1, "nodes": [{"name": "a"}]},
        {"name": "x", "version": 1, "nodes": [{"name": "a", "action": "b", "kind": "loop"}]},
        {"name": "x", "version": 1, "nodes": [{"name": "a", "action": "b", "outputs": "rows"}]},
        {"name": "x", "version": 1, "nodes": [], "edges": [{"upstream": "a"}]},
        {"name": "x", "version": 1, "nodes": [], "edges": [{"upstream": ["a"], "downstream": "b"}]},
        {"name": "x", "version": 1, "nodes": [], "edges": [{"upstream": "a", "downstream": "b", "bindings": ["xyz"]}]},
    ],
)
def test_a_snapshot_of_another_shape_is_refused(stored):
    with pytest.raises(Invalid) as caught:
        FlowDefinition.from_json(stored)
    assert caught.value.code == "DAG_VALIDATION_DEFINITION_SNAPSHOT_INVALID"


def test_a_newer_snapshot_is_still_read():
    stored = a_diamond().to_json() | {"colour": "green"}
    stored["nodes"][0]["mood"] = "fine"
    assert FlowDefinition.from_json(stored) == a_diamond()


def test_the_digest_follows_content_and_not_the_order_of_config_keys():
    one = a_definition(a_node(config={"x": 1, "y": 2}))
    other = a_definition(a_node(config={"y": 2, "x": 1}))
    assert one.digest() == other.digest() == FlowDefinition.from_json(one.to_json()).digest()
    assert one.digest() != a_definition(a_node(config={"x": 1, "y": 3})).digest()


def test_edges_of_the_run_order_nothing():
    edges = [an_edge(f"{RUN_INPUT}>a", "day>day"), an_edge("a>b", ">x"), an_edge(f"b>{RUN_OUTPUT}", ">")]
    graph = a_definition(A, B, edges=edges, inputs=(DAY,)).validated().graph()
    assert graph.pending() == {"a": 0, "b": 1}
    assert graph.roots == ("a",)


def test_incoming_edges_keep_their_order():
    edges = (an_edge("b>c", ">x[0]"), an_edge(f"{RUN_INPUT}>c", "day>d"), an_edge("a>c", ">x"))
    definition = a_definition(A, B, a_node("c"), edges=edges, inputs=(DAY,)).validated()
    assert definition.incoming()["c"] == edges
    assert definition.incoming()[RUN_OUTPUT] == ()


def test_a_node_is_found_by_name():
    assert a_diamond().node("left").name == "left"
    with pytest.raises(Invalid, match="DAG_VALIDATION_NODE_NOT_FOUND"):
        a_diamond().node("nowhere")


def test_descendants_include_their_roots_in_order():
    graph = a_flow("a>b b>c a>d e>d d>c").graph()
    assert graph.descendants(["b"]) == ("b", "c")
    assert set(graph.descendants(["e"])) == {"e", "d", "c"}
    assert graph.descendants([]) == ()


@given(flows())
def test_the_order_puts_every_node_after_its_upstreams(definition):
    graph = definition.graph()
    place = {name: index for index, name in enumerate(graph.order)}
    assert sorted(place) == sorted(graph.names)
    assert all(place[edge.upstream] < place[edge.downstream] for edge in definition.edges)
    assert graph == FlowDefinition.from_json(definition.to_json()).graph()
    assert graph.pending() == {name: len(set(graph.upstream[name])) for name in graph.names}


@given(flows(), st.data())
def test_closing_a_circle_is_always_refused(definition, data):
    graph = definition.graph()
    far = [(one, root) for root in graph.names for one in graph.descendants([root]) if one != root]
    if far:
        downstream, upstream = data.draw(st.sampled_from(far))
        back = an_order_edge(f"{downstream}>{upstream}")
        closed = FlowDefinition(name="any", nodes=definition.nodes, edges=(*definition.edges, back))
        error = refused(closed)
        assert error.code == "DAG_VALIDATION_CYCLE"
        ends = {(edge.upstream, edge.downstream) for edge in closed.edges}
        cycle = error.fields["cycle"]
        assert all(pair in ends for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


@pytest.mark.parametrize("shape", ["chain", "fan_in", "dense"])
def test_validation_takes_linear_time(shape):
    def built(size):
        names = [f"n{number}" for number in range(size)]
        match shape:
            case "chain":
                ends = pairwise(names)
            case "fan_in":
                ends = ((name, "n0") for name in names[1:])
            case _:
                ends = ((names[n], names[n + step]) for n in range(size) for step in range(1, 5) if n + step < size)
        edges = tuple(
            Edge(upstream=one, downstream=other, bindings=(Binding(input_key=f"x[{one[1:]}]"),)) for one, other in ends
        )
        return FlowDefinition(name="big", nodes=tuple(map(a_node, names)), edges=edges)

    small, large = built(50), built(400)
    assert lines_run(large.validated) < 8 * 1.3 * lines_run(small.validated)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("day", Slot("day")),
        ("images[0]", Slot("images", 0)),
        ("images[99999]", Slot("images", 99_999)),
        ("two words", Slot("two words")),
        ("images[01]", None),
        ("images[]", None),
        ("[0]", None),
        ("", None),
        (" ", None),
        (3, None),
        ("x" * 129, None),
        ("a\x00", None),
    ],
)
def test_an_input_key_is_read_strictly(key, slot):
    assert slot_of(key) == slot


def test_a_value_that_contains_itself_is_not_plain():
    endless: list[object] = []
    endless += [endless, endless]
    assert not is_plain(endless)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {2}}, "a\x00", "\ud800", float("inf"), b"", (1,)])
def test_what_json_would_change_is_not_plain(value):
    assert not is_plain(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
    )
)
def test_json_values_are_plain(value):
    assert is_plain(value)
