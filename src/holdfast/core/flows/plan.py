"""Indexed flow graph: what the engine reads of a definition while its runs progress, built once and cached.

Nodes are numbered by their position in the definition. Every worker caches the plan of every flow that it meets, so
neighbours are stored in arrays, and nodes may be loaded on access (see `store.plans`). Nothing here depends on the
progress of a run (see `progress`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from holdfast.core.flows.csr import CompressedRows
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.input_plan import InputPlan, input_plan_of
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Binding, Edge, FlowInput, Node, NodeKind, TriggerRule

RECIPES_MAX = 5_000
_FROM_RUN = -1

_Way = tuple[tuple[Binding, ...], bool]
"""The bindings of an edge and whether it is order-only. Thousands of edges share a few of these."""


class NodeFacts(Protocol):
    """The properties of a node that the plan stores for all nodes."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> NodeKind: ...
    @property
    def trigger_rule(self) -> TriggerRule: ...
    @property
    def condition(self) -> object: ...


class PlainEdge(NamedTuple):
    """An edge as input to a plan. Edges with equal `alike` carry the same bindings; `full` loads the first of them."""

    upstream: str
    downstream: str
    alike: Hashable
    full: Callable[[], Edge]


class Plan:
    """A definition, indexed by node number."""

    __slots__ = (
        "_incoming",
        "_read",
        "_recipes",
        "_upstreams",
        "_ways",
        "downstream",
        "has_maps",
        "inputs",
        "is_join",
        "is_simple",
        "is_task",
        "kinds",
        "name",
        "names",
        "nodes",
        "number",
        "roots",
        "rules",
        "upstream",
        "version",
    )

    def __init__(
        self,
        *,
        name: str,
        version: int,
        inputs: tuple[FlowInput, ...],
        nodes: Sequence[Node],
        facts: Iterable[NodeFacts],
        edges: Iterable[PlainEdge],
        read: Callable[[], FlowDefinition],
    ) -> None:
        self.name = name
        self.version = version
        self.inputs = inputs
        self.nodes = nodes
        self.names: list[str] = []
        self.kinds: list[NodeKind] = []
        self.rules: list[TriggerRule] = []
        is_simple = bytearray()
        for fact in facts:
            self.names.append(fact.name)
            self.kinds.append(fact.kind)
            self.rules.append(fact.trigger_rule)
            is_simple.append(fact.kind is NodeKind.TASK and fact.condition is None)
        self.is_simple = bytes(is_simple)
        """Whether releasing the node only starts its task: no condition, items, run or wait."""
        self.is_task = bytes(kind is NodeKind.TASK for kind in self.kinds)
        self.has_maps = NodeKind.MAP in self.kinds
        self.number: Mapping[str, int] = {name: number for number, name in enumerate(self.names)}
        self._connect(edges)
        self.is_join = bytes(self.upstream.count(number) > 1 for number in range(len(self.names)))
        """Whether the node waits for more than one upstream, so that its counters must be stored until the last one
        ends."""
        self.roots = tuple(number for number in range(len(self.names)) if not self.upstream.count(number))
        self._recipes: dict[int, InputPlan] = {}
        self._read = read

    @classmethod
    def of(cls, definition: FlowDefinition) -> Plan:
        """Build the plan of a definition in memory."""
        return cls(
            name=definition.name,
            version=definition.version,
            inputs=definition.inputs,
            nodes=definition.nodes,
            facts=definition.nodes,
            edges=map(_plain, definition.edges),
            read=lambda: definition,
        )

    def _connect(self, edges: Iterable[PlainEdge]) -> None:
        size = len(self.names)
        places = {**self.number, RUN_INPUT: _FROM_RUN, RUN_OUTPUT: size}
        ups, downs, ways = array("i"), array("i"), array("i")
        known: dict[Hashable, int] = {}
        self._ways: list[_Way] = []
        for upstream, downstream, alike, full in edges:
            ups.append(places[upstream])
            downs.append(places[downstream])
            if (way := known.get(alike)) is None:
                way = known[alike] = len(self._ways)
                edge = full()
                self._ways.append((edge.bindings, edge.is_order_only))
            ways.append(way)
        self._upstreams = (ups, ways)
        self._incoming = CompressedRows(size + 1, downs, range(len(downs)))
        inner = [number for number in range(len(downs)) if ups[number] != _FROM_RUN and downs[number] != size]
        inner_ups, inner_downs = [ups[number] for number in inner], [downs[number] for number in inner]
        self.upstream = CompressedRows(size, inner_downs, inner_ups)
        self.downstream = CompressedRows(size, inner_ups, inner_downs)

    @property
    def definition(self) -> FlowDefinition:
        """The whole definition; a stored one is read again on every access."""
        return self._read()

    def incoming(self, name: str) -> tuple[Edge, ...]:
        """Return the edges into a node or into `$output`, in order, including those from `$input`."""
        ups, ways = self._upstreams
        found = []
        for number in self._incoming[len(self.names) if name == RUN_OUTPUT else self.number[name]]:
            upstream = RUN_INPUT if ups[number] == _FROM_RUN else self.names[ups[number]]
            bindings, is_order_only = self._ways[ways[number]]
            found.append(Edge(upstream=upstream, downstream=name, bindings=bindings, is_order_only=is_order_only))
        return tuple(found)

    def recipe(self, node_no: int) -> InputPlan:
        """Return the input recipe of a node, computed on first use."""
        if (found := self._recipes.get(node_no)) is None:
            if len(self._recipes) >= RECIPES_MAX:
                self._recipes.clear()
            found = input_plan_of(self.nodes[node_no], self.incoming(self.names[node_no]), self.number)
            self._recipes[node_no] = found
        return found


def _plain(edge: Edge) -> PlainEdge:
    return PlainEdge(edge.upstream, edge.downstream, (edge.bindings, edge.is_order_only), lambda: edge)
