"""A drawing shows every node and every edge, nothing overlaps, and it is always the same."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.flows import a_diamond, a_flow, a_node, an_order_edge, flows, lines_run

from holdfast.core.drawing.channel import routed
from holdfast.core.drawing.layout import Drawing, layout
from holdfast.core.drawing.state_style import HUES, STYLES, state_line, style_of
from holdfast.core.drawing.svg import draw_svg
from holdfast.core.drawing.text import BOXES_MAX, draw_text
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.tasks.states import RETRYING_LABEL, TaskState

SVG = "{http://www.w3.org/2000/svg}"


def a_random_flow(size, *, seed=7, edges_per_node=3):
    chance = random.Random(seed)
    pairs = {tuple(sorted(chance.sample(range(size), 2))) for _ in range(edges_per_node * size)}
    edges = tuple(an_order_edge(f"n{low}>n{high}") for low, high in sorted(pairs))
    return FlowDefinition(name="any", nodes=tuple(a_node(f"n{number}") for number in range(size)), edges=edges)


def ends_of(definition):
    return {(edge.upstream, edge.downstream) for edge in definition.edges}


def assert_sound(definition, drawing):
    boxes = {box.node: box for box in drawing.boxes}
    assert sorted(boxes) == sorted(node.name for node in definition.nodes)
    assert len(drawing.routes) == len(definition.edges)
    assert {(route.upstream, route.downstream) for route in drawing.routes} == ends_of(definition)
    by_layer = {}
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - box.width and 0 <= box.y <= drawing.height - box.height
        by_layer.setdefault(box.layer, []).append(box)
    for layer in by_layer.values():
        assert len({box.x for box in layer}) == 1
        assert all(lower.y >= upper.y + upper.height for upper, lower in pairwise(sorted(layer, key=lambda b: b.y)))
    for route in drawing.routes:
        assert_routed(route, boxes, by_layer)


def assert_routed(route, boxes, by_layer):
    """From side to side, always to the right, and level past whatever stands in the layers between."""
    start, end = boxes[route.upstream], boxes[route.downstream]
    assert route.points[0] == (start.x + start.width, start.y + start.height // 2)
    assert route.points[-1] == (end.x, end.y + end.height // 2)
    assert all(x < next_x for (x, _), (next_x, _) in pairwise(route.points))
    for (x, y), (_, next_y) in zip(route.points[1:-1:2], route.points[2:-1:2], strict=True):
        assert y == next_y
        passed = [box for layer in by_layer.values() for box in layer if box.x == x]
        assert not any(box.y <= y <= box.y + box.height for box in passed)


@given(flows())
def test_any_flow_is_drawn_soundly_and_always_the_same(definition):
    drawing = layout(definition)
    assert_sound(definition, drawing)
    assert drawing == layout(FlowDefinition.from_json(definition.to_json()))


def test_a_thousand_nodes_are_drawn_soundly():
    definition = a_random_flow(1000)
    assert_sound(definition, layout(definition))


def test_drawing_takes_about_linear_time():
    small, large = a_random_flow(50), a_random_flow(400)
    grown = len(layout(large).layers.names) / len(layout(small).layers.names)
    assert lines_run(lambda: layout(large)) < 1.6 * grown * lines_run(lambda: layout(small))


def test_a_hopelessly_long_tangle_stays_bounded():
    size = 120
    edges = tuple(an_order_edge(f"n{low}>n{high}") for high in range(size) for low in range(high))
    definition = FlowDefinition(name="any", nodes=tuple(a_node(f"n{n}") for n in range(size)), edges=edges)
    drawing = layout(definition)
    assert not drawing.layers.is_complete
    assert len(drawing.layers.names) <= 9 * size
    assert len(drawing.routes) == len(edges)


def test_a_chain_is_one_level_line():
    drawing = layout(a_flow("a>b b>c c>d"))
    assert len({box.y for box in drawing.boxes}) == 1
    assert [box.layer for box in drawing.boxes] == [0, 1, 2, 3]


def test_a_late_root_stands_just_before_its_downstream():
    layers = {box.node: box.layer for box in layout(a_flow("a>b b>c late>c")).boxes}
    assert layers["late"] == 1


def test_branches_that_need_not_cross_do_not():
    drawing = layout(a_flow("a>d b>c c>x d>y"))
    y = {box.node: box.y for box in drawing.boxes}
    assert (y["a"] < y["b"]) == (y["d"] < y["c"]) == (y["y"] < y["x"])


def crossings(layers, items):
    """Count crossing lines pair by pair."""
    total = 0
    for left, right in pairwise(items):
        place = {item: index for index, item in enumerate(right)}
        lines = [(index, place[one]) for index, item in enumerate(left) for one in layers.after[item]]
        total += sum(a < c and b > d for a, b in lines for c, d in lines)
    return total


@given(flows())
def test_ordering_never_adds_crossings(definition):
    layers = layout(definition).layers
    assert crossings(layers, layers.items) <= crossings(layers, [sorted(layer) for layer in layers.items])


def test_ordering_removes_most_crossings():
    layers = layout(a_random_flow(60, edges_per_node=1)).layers
    assert 3 * crossings(layers, layers.items) < crossings(layers, [sorted(layer) for layer in layers.items])


def test_edges_of_one_upstream_share_their_way():
    drawing = layout(a_flow("a>b b>c c>d a>c a>d"))
    assert len(drawing.layers.names) == 4 + 2


def test_a_diamond_in_text():
    labels = {"start": state_line("completed"), "left": state_line("running")}
    assert (
        draw_text(layout(a_diamond()), labels)
        == """\
                   ┌───────────┐
                ┌─▶│ left      ├─┐
                │  │ ▶ running │ │
┌─────────────┐ │  └───────────┘ │  ┌─────┐
│ start       ├─┤                ├─▶│ end │
│ ✓ completed │ │                │  │     │
└─────────────┘ │  ┌───────────┐ │  └─────┘
                └─▶│ right     ├─┘
                   │           │
                   └───────────┘
"""
    )


BITS = {"│": "NS", "─": "EW", "┌": "SE", "┐": "SW", "└": "NE", "┘": "NW"} | {
    "├": "NSE",
    "┤": "NSW",
    "┬": "EWS",
    "┴": "EWN",
    "┼": "NESW",
}
STEPS = {"N": (-1, 0), "S": (1, 0), "E": (0, 1)}


class Reader:
    """Follows lines in a text drawing as a person does: never back to the left, straight on at crossings."""

    def __init__(self, text, names):
        self.lines = text.splitlines()
        self.left, self.right = {}, {}
        for name in names:
            row, column = next(
                (row, line.index(f"│ {name} ")) for row, line in enumerate(self.lines) if f"│ {name} " in line
            )
            self.left[row, column] = name
            self.right[name] = (
                row,
                min(column + offset for offset, sign in enumerate(self.lines[row][column:]) if offset and sign in "│├"),
            )

    def at(self, row, column):
        return self.lines[row][column] if row < len(self.lines) and column < len(self.lines[row]) else " "

    def reached_from(self, name):
        row, column = self.right[name]
        found, seen = set(), set()
        pending = [(row + lower, column, "E") for lower in (0, 1) if self.at(row + lower, column) == "├"]
        while pending:
            row, column, heading = step = pending.pop()
            if step in seen:
                continue
            seen.add(step)
            row, column = row + STEPS[heading][0], column + STEPS[heading][1]
            sign = self.at(row, column)
            if sign == "▶":
                found.add(self.left[row, column + 1])
            elif heading == "E" and sign == "│":
                pending.append((row, column, "E"))
            else:
                ways = BITS[sign]
                assert {"N": "S", "S": "N", "E": "W"}[heading] in ways, "a line ends in nothing"
                back = {"N": "S", "S": "N"}.get(heading)
                pending += [(row, column, way) for way in ways if way in STEPS and way != back]
        return found


@settings(deadline=None)
@given(flows(nodes_max=9), st.booleans())
def test_every_edge_can_be_followed_in_text(definition, has_labels):
    graph = definition.graph()
    labels = dict.fromkeys(graph.names, "✓ completed") if has_labels else {}
    text = draw_text(layout(definition), labels, width=400)
    assert "←" not in text
    reader = Reader(text, graph.names)
    for name in graph.names:
        assert set(graph.downstream[name]) <= reader.reached_from(name)


@settings(deadline=None)
@given(flows(), st.integers(20, 120))
def test_text_is_never_wider_than_asked(definition, width):
    text = draw_text(layout(definition), {node.name: "✓ completed" for node in definition.nodes}, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert all(node.name in text for node in definition.nodes)


def test_a_large_flow_is_listed_in_order_with_its_upstreams():
    definition = a_random_flow(BOXES_MAX + 1)
    lines = draw_text(layout(definition), {"n0": "✓ completed"}, width=200).splitlines()
    assert [line.split()[0] for line in lines] == list(definition.graph().order)
    some = next(line for line in lines if "←" in line)
    name, upstreams = some.split()[0], some.split("← ")[1].split(", ")
    assert upstreams == definition.graph().upstream[name]


def test_a_label_cannot_command_the_terminal():
    assert "\x1b" not in draw_text(layout(a_flow()), {"a": "\x1b[2Jgone"})


def test_a_circle_of_rows_lowers_one_exit():
    channel = routed([(0, 1, (7, 13)), (1, 7, (1, 13))])
    assert [len(wire.lowered) for wire in channel.wires].count(1) == 1
    assert sorted(wire.column for wire in channel.wires) == [0, 1]


def test_sources_with_the_same_targets_share_a_wire():
    (wire,) = routed([(0, 1, (1, 7)), (1, 7, (7, 1))]).wires
    assert wire.starts == {0: 1, 1: 7}
    assert not wire.lowered


def parsed(drawing: Drawing, states=None):
    return ElementTree.fromstring(draw_svg(drawing, states))


def test_the_svg_has_every_node_and_edge_with_icon_and_word():
    flow = a_diamond()
    words = {"start": "completed", "left": "failed", "right": "retrying", "end": "upstream_failed"}
    root = parsed(layout(flow), words)
    groups = list(root.iter(f"{SVG}g"))
    nodes = {group.get("data-node"): "".join(group.itertext()) for group in groups if "data-node" in group.attrib}
    assert set(nodes) == set(words)
    assert all(
        style_of(word).icon in nodes[name] and style_of(word).word in nodes[name] for name, word in words.items()
    )
    edges = [group for group in groups if group.get("class", "").startswith("edge")]
    assert {edge.find(f"{SVG}title").text for edge in edges} == {f"{one} → {other}" for one, other in ends_of(flow)}
    assert sum("broken" in edge.get("class") for edge in edges) == 1


def test_the_svg_has_light_and_dark_colours_and_asks_for_nothing():
    svg = draw_svg(layout(a_diamond()))
    assert "prefers-color-scheme:dark" in svg
    for light, dark in HUES.values():
        assert light in svg and dark in svg
    assert "<script" not in svg and "url(" not in svg and svg.count("http") == 1


@pytest.mark.parametrize("text", ['<script>"&', "a\x00b\x1b"])
def test_text_from_outside_is_escaped(text):
    flow = FlowDefinition(name="any", nodes=(a_node(text),))
    root = parsed(layout(flow), {text: text})
    assert "script" not in {element.tag.removeprefix(SVG) for element in root.iter()}


def test_every_state_has_a_look():
    assert {*map(str, TaskState), RETRYING_LABEL} <= set(STYLES)
    assert {look.hue for look in STYLES.values()} <= set(HUES)
    assert len({state_line(state) for state in STYLES}) == len(STYLES)
