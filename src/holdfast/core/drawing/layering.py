"""Assignment of nodes to layers and their order within them, so that few edges cross.

Layers follow the edges: a node is one layer after its last upstream, a node without upstreams just before its first
downstream. An edge over several layers passes them on dummies, which all edges of one upstream share. The order comes
from barycentres in a fixed number of sweeps; the order with the fewest crossings wins. The result is deterministic, in
about linear time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.flows.graph import Graph

SWEEPS = 6
DUMMIES_PER_NODE_MAX, DUMMIES_MAX = 8, 20_000
"""Beyond this many dummies, counted over the whole graph with the shortest edges first, long edges go straight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Items in layers. The first items are the nodes in topological order; the rest are dummies."""

    items: tuple[tuple[int, ...], ...]
    """Per layer, its items from top to bottom."""
    names: tuple[str, ...]
    """Per item, its node; for a dummy, the upstream whose edges it carries."""
    node_count: int
    before: tuple[tuple[int, ...], ...]
    """Per item, its neighbours in the previous layer."""
    after: tuple[tuple[int, ...], ...]
    paths: Mapping[tuple[str, str], tuple[int, ...]]
    """Per edge, the items that it passes, both ends included."""
    is_complete: bool
    """Whether every edge passes every layer between its ends."""

    def is_dummy(self, item: int) -> bool:
        return item >= self.node_count


def layered(graph: Graph) -> Layers:
    """Assign the nodes to layers and order each layer."""
    assert len(graph.order) == len(graph.names), "a graph with a cycle has no layers"
    builder = _LayerBuilder(graph)
    builder.add_dummies()
    before = tuple(map(tuple, builder.before))
    after = tuple(map(tuple, builder.after))
    return Layers(
        items=_ordered(builder.initial(), before, after),
        names=tuple(builder.names),
        node_count=len(graph.order),
        before=before,
        after=after,
        paths=builder.paths,
        is_complete=builder.is_complete,
    )


class _LayerBuilder:
    """Items and their neighbours under construction."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: list[str] = list(graph.order)
        self.layer_of: list[int] = _depths(graph)
        self.before: list[list[int]] = [[] for _ in self.names]
        self.after: list[list[int]] = [[] for _ in self.names]
        self.paths: dict[tuple[str, str], tuple[int, ...]] = {}
        self.is_complete = True

    def add_dummies(self) -> None:
        number = {name: item for item, name in enumerate(self.names)}
        edges = [
            (number[name], number[neighbor]) for name in self.graph.names for neighbor in self.graph.downstream[name]
        ]
        edges.sort(key=lambda edge: self.layer_of[edge[1]] - self.layer_of[edge[0]])
        chains: dict[int, list[int]] = {}
        room = min(DUMMIES_PER_NODE_MAX * len(self.names), DUMMIES_MAX)
        for upstream, downstream in edges:
            chain = chains.setdefault(upstream, [upstream])
            length = self.layer_of[downstream] - self.layer_of[upstream]
            room -= max(0, length - len(chain))
            if room < 0 and length > len(chain):
                self.is_complete = False
                passed = [upstream]
            else:
                self._lengthen(chain, length)
                passed = chain[:length]
                self._join(passed[-1], downstream)
            self.paths[self.names[upstream], self.names[downstream]] = (*passed, downstream)

    def initial(self) -> list[list[int]]:
        layers: list[list[int]] = [[] for _ in range(max(self.layer_of) + 1)]
        for item, layer in enumerate(self.layer_of):
            layers[layer].append(item)
        return layers

    def _lengthen(self, chain: list[int], length: int) -> None:
        while len(chain) < length:
            dummy = len(self.names)
            self.names.append(self.names[chain[0]])
            self.layer_of.append(self.layer_of[chain[-1]] + 1)
            self.before.append([])
            self.after.append([])
            self._join(chain[-1], dummy)
            chain.append(dummy)

    def _join(self, left: int, right: int) -> None:
        self.after[left].append(right)
        self.before[right].append(left)


def _depths(graph: Graph) -> list[int]:
    """Return the layer of every node, in topological order."""
    depth: dict[str, int] = {}
    for name in graph.order:
        depth[name] = max((depth[neighbor] + 1 for neighbor in graph.upstream[name]), default=0)
    for name in graph.roots:
        depth[name] = min((depth[neighbor] - 1 for neighbor in graph.downstream[name]), default=0)
    return [depth[name] for name in graph.order]


Neighbours = Sequence[Sequence[int]]


def _ordered(layers: list[list[int]], before: Neighbours, after: Neighbours) -> tuple[tuple[int, ...], ...]:
    best = [list(layer) for layer in layers]
    fewest = _crossings(best, after)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        is_forward = sweep % 2 == 0
        walk = range(1, len(layers)) if is_forward else range(len(layers) - 2, -1, -1)
        for index in walk:
            fixed = layers[index - 1 if is_forward else index + 1]
            layers[index] = _by_barycentre(layers[index], fixed, before if is_forward else after)
        crossings = _crossings(layers, after)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    return tuple(map(tuple, best))


def _by_barycentre(layer: list[int], fixed: list[int], neighbours: Neighbours) -> list[int]:
    """Sort a layer by the mean position of each item's neighbours; an item without neighbours stays about
    where it is.
    """
    position = {item: index for index, item in enumerate(fixed)}
    scale = len(fixed) / len(layer)
    keys: dict[int, float] = {}
    for index, item in enumerate(layer):
        mine = neighbours[item]
        keys[item] = sum(position[neighbour] for neighbour in mine) / len(mine) if mine else index * scale
    return sorted(layer, key=keys.__getitem__)


def _crossings(layers: list[list[int]], after: Neighbours) -> int:
    """Count the crossings between all adjacent layers, as inversions in a Fenwick tree."""
    total = 0
    for index in range(len(layers) - 1):
        position = {item: index for index, item in enumerate(layers[index + 1])}
        tree = [0] * (len(position) + 1)
        seen = 0
        for item in layers[index]:
            ends = sorted(position[successor] for successor in after[item])
            for end in ends:
                total += seen - _count_up_to(tree, end + 1)
            for end in ends:
                _add(tree, end + 1)
            seen += len(ends)
    return total


def _count_up_to(tree: list[int], index: int) -> int:
    count = 0
    while index > 0:
        count += tree[index]
        index &= index - 1
    return count


def _add(tree: list[int], index: int) -> None:
    while index < len(tree):
        tree[index] += 1
        index += index & -index
