"""Vertical positions of the items in each layer: near their neighbours, in order, without overlap.

Each layer in turn aligns its items with their neighbours and takes the nearest positions that keep order and distance
(isotonic regression, linear time). The results are integers and deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.core.drawing.layering import Layers

ROUNDS = 4
_DUMMY_WEIGHT = 4.0
"""Keeping a long edge straight weighs more than centring a node."""


def placed(layers: Layers, *, heights: Sequence[int], anchors: Sequence[int], gap: int) -> list[int]:
    """Return the top of every item, the smallest being 0. An edge meets an item `anchors` below its top."""
    tops = [0] * len(heights)
    for layer in layers.items:
        _stack(layer, tops, heights, gap)
    backward = tuple(reversed(layers.items))
    for _ in range(ROUNDS):
        for layer in layers.items:
            _settle(layers, layer, layers.before, tops, heights, anchors, gap)
        for layer in backward:
            _settle(layers, layer, layers.after, tops, heights, anchors, gap)
    for layer in layers.items:
        _settle(layers, layer, layers.before, tops, heights, anchors, gap)
    highest = min(tops, default=0)
    return [top - highest for top in tops]


def _stack(layer: Sequence[int], tops: list[int], heights: Sequence[int], gap: int) -> None:
    top = 0
    for item in layer:
        tops[item] = top
        top += heights[item] + gap


def _settle(
    layers: Layers,
    layer: Sequence[int],
    neighbours: Sequence[Sequence[int]],
    tops: list[int],
    heights: Sequence[int],
    anchors: Sequence[int],
    gap: int,
) -> None:
    """Align one layer with its neighbours. Items whose wishes conflict form a block at their weighted mean."""
    blocks: list[tuple[float, float, int]] = []
    offset = 0
    for item in layer:
        mine = neighbours[item]
        wish = (
            sum(tops[neighbour] + anchors[neighbour] for neighbour in mine) / len(mine) - anchors[item]
            if mine
            else tops[item]
        )
        mean, weight, count = wish - offset, _DUMMY_WEIGHT if layers.is_dummy(item) else 1.0, 1
        while blocks and blocks[-1][0] > mean:
            mean_before, weight_before, count_before = blocks.pop()
            mean = (mean_before * weight_before + mean * weight) / (weight_before + weight)
            weight += weight_before
            count += count_before
        blocks.append((mean, weight, count))
        offset += heights[item] + gap
    offset = 0
    index = 0
    for mean, _, count in blocks:
        base = math.floor(mean + 0.5)
        for item in layer[index : index + count]:
            tops[item] = base + offset
            offset += heights[item] + gap
        index += count
