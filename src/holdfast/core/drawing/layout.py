"""Layout of a flow drawing: a box per node, a route per edge, left to right, in whole pixels.

Deterministic, so a drawing can be cached per version. It does not depend on states, which the renderers add.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.drawing.layering import Layers, layered
from holdfast.core.drawing.placing import placed
from holdfast.core.flows.graph import FlowDefinition

BOX_WIDTH, BOX_HEIGHT = 170, 52
LAYER_GAP, BOX_GAP = 72, 16
DUMMY_HEIGHT = 8
MARGIN = 16

Point = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The position of a node; x and y are its upper left corner."""

    node: str
    layer: int
    x: int
    y: int
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The path of an edge, from the right side of its upstream to the left side of its downstream.

    Points come in pairs: the segment across a layer is horizontal, the segment between two layers is not.
    """

    upstream: str
    downstream: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A complete layout; boxes are in topological order, which is also the focus order."""

    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    layers: Layers
    width: int
    height: int


def layout(definition: FlowDefinition) -> Drawing:
    """Lay out a validated definition."""
    graph = definition.graph()
    layers = layered(graph)
    heights = [DUMMY_HEIGHT if layers.is_dummy(item) else BOX_HEIGHT for item in range(len(layers.names))]
    anchors = [height // 2 for height in heights]
    tops = placed(layers, heights=heights, anchors=anchors, gap=BOX_GAP)
    left = [0] * len(heights)
    layer_of = [0] * len(heights)
    for index, layer in enumerate(layers.items):
        for item in layer:
            layer_of[item] = index
            left[item] = MARGIN + index * (BOX_WIDTH + LAYER_GAP)
    level = [MARGIN + top + anchor for top, anchor in zip(tops, anchors, strict=True)]
    boxes = tuple(
        Box(node=layers.names[item], layer=layer_of[item], x=left[item], y=MARGIN + tops[item])
        for item in range(layers.node_count)
    )
    routes = tuple(
        Route(upstream=name, downstream=node, points=_points(layers.paths[name, node], left, level))
        for node in graph.names
        for name in graph.upstream[node]
    )
    return Drawing(
        boxes=boxes,
        routes=routes,
        layers=layers,
        width=2 * MARGIN + len(layers.items) * (BOX_WIDTH + LAYER_GAP) - LAYER_GAP,
        height=2 * MARGIN + max(top + height for top, height in zip(tops, heights, strict=True)),
    )


def _points(path: tuple[int, ...], left: list[int], level: list[int]) -> tuple[Point, ...]:
    points: list[Point] = [(left[path[0]] + BOX_WIDTH, level[path[0]])]
    for item in path[1:-1]:
        points += [(left[item], level[item]), (left[item] + BOX_WIDTH, level[item])]
    points.append((left[path[-1]], level[path[-1]]))
    return tuple(points)
