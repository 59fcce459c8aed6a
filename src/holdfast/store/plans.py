"""Plans of stored definitions: small, because a worker keeps them, and quick to read, because work waits meanwhile.

A hundred thousand nodes stay the bytes they were stored as; each is read when it is asked for. Of edges only numbers
are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, overload

import msgspec

from holdfast.core.graph import FlowDefinition
from holdfast.core.graph_json import SHAPE_ERRORS, edge_of, input_of, node_of, shapeless
from holdfast.core.nodes import Edge, Node, NodeKind, TriggerRule
from holdfast.core.plan import PlainEdge, Plan


class _StoredNode(msgspec.Struct, frozen=True, gc=False):
    name: str
    kind: NodeKind = NodeKind.TASK
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    condition: Any = None


class _StoredEdge(msgspec.Struct, frozen=True, gc=False):
    upstream: str
    downstream: str
    bindings: msgspec.Raw = msgspec.Raw()
    is_order_only: bool = False


class _Stored(msgspec.Struct, frozen=True):
    name: str
    version: int
    nodes: list[msgspec.Raw]
    edges: list[msgspec.Raw] = []
    inputs: list[Any] = []


def read_plan(stored: bytes) -> Plan:
    """The plan of a stored definition; `DAG_VALIDATION_DEFINITION_SNAPSHOT_INVALID` if it is none."""
    try:
        parts = msgspec.json.decode(stored, type=_Stored)
        return Plan(
            name=parts.name,
            version=parts.version,
            inputs=tuple(map(input_of, parts.inputs)),
            nodes=_Nodes(parts.nodes),
            facts=map(msgspec.json.Decoder(_StoredNode).decode, parts.nodes),
            edges=_edges(parts.edges),
            read=lambda: FlowDefinition.from_json(msgspec.json.decode(stored)),
        )
    except (*SHAPE_ERRORS, msgspec.MsgspecError) as error:
        raise shapeless(error) from error


class _Nodes(Sequence[Node]):
    """Stored nodes, read when asked for."""

    __slots__ = ("_stored",)

    def __init__(self, stored: list[msgspec.Raw]) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, place: int) -> Node: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Node]: ...
    def __getitem__(self, place: int | slice) -> Node | Sequence[Node]:
        return [_node(one) for one in self._stored[place]] if isinstance(place, slice) else _node(self._stored[place])


def _node(stored: msgspec.Raw) -> Node:
    try:
        return node_of(msgspec.json.decode(stored))
    except SHAPE_ERRORS as error:
        raise shapeless(error) from error


def _edges(stored: Iterable[msgspec.Raw]) -> Iterator[PlainEdge]:
    decode = msgspec.json.Decoder(_StoredEdge).decode
    for raw in stored:
        edge = decode(raw)
        yield PlainEdge(edge.upstream, edge.downstream, (bytes(edge.bindings), edge.is_order_only), partial(_edge, raw))


def _edge(stored: msgspec.Raw) -> Edge:
    return edge_of(msgspec.json.decode(stored))
