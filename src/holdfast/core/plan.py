"""A flow's graph by numbers: what a run in progress asks of its definition, made once and kept.

Nodes are numbered by their place in the definition. Nothing here knows how far a run is (see `progress`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.graph import FlowDefinition
from holdfast.core.nodes import Edge, Node, NodeKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A definition, indexed by node number."""

    definition: FlowDefinition
    nodes: tuple[Node, ...]
    number: Mapping[str, int]
    downstream: tuple[tuple[int, ...], ...]
    upstream: tuple[tuple[int, ...], ...]
    incoming: Mapping[str, tuple[Edge, ...]]
    roots: tuple[int, ...]
    is_simple: tuple[bool, ...]
    """Whether releasing the node starts its task and nothing else: no condition, no items, no run, no wait."""

    @classmethod
    def of(cls, definition: FlowDefinition) -> Plan:
        graph = definition.graph()
        number = graph.number
        return cls(
            definition=definition,
            nodes=definition.nodes,
            number=number,
            downstream=tuple(tuple(number[one] for one in graph.downstream[name]) for name in graph.names),
            upstream=tuple(tuple(number[one] for one in graph.upstream[name]) for name in graph.names),
            incoming=definition.incoming(),
            roots=tuple(number[name] for name in graph.roots),
            is_simple=tuple(node.kind is NodeKind.TASK and node.condition is None for node in definition.nodes),
        )
