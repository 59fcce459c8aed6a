"""Plans of stored definitions: small, because a worker caches them, and fast to read, because tasks wait meanwhile.

Nodes stay the bytes they were stored as, and each is decoded on access. Those of a very large flow are compressed in
blocks that are decompressed one at a time. Of edges only numbers are kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, overload

import msgspec

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.graph_json import SHAPE_ERRORS, edge_of, input_of, node_of, shape_error
from holdfast.core.flows.nodes import Edge, Node, NodeKind, TriggerRule
from holdfast.core.flows.plan import PlainEdge, Plan

GIANT_BYTES = 256 * 1024
"""From this size on a definition is worth compressing."""
BLOCK_NODES = 500
_QUICKLY = 1


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
    """Return the plan of a stored definition; `DAG_VALIDATION_DEFINITION_SNAPSHOT_INVALID` if it is invalid."""
    is_giant = len(stored) > GIANT_BYTES
    try:
        parts = msgspec.json.decode(stored, type=_Stored)
        return Plan(
            name=parts.name,
            version=parts.version,
            inputs=tuple(map(input_of, parts.inputs)),
            nodes=_Nodes(_Packed(parts.nodes) if is_giant else parts.nodes),
            facts=map(msgspec.json.Decoder(_StoredNode).decode, parts.nodes),
            edges=_edges(parts.edges),
            read=_unfolding(stored) if is_giant else partial(_definition, stored),
        )
    except (*SHAPE_ERRORS, msgspec.MsgspecError) as error:
        raise shape_error(error) from error


def _definition(stored: bytes) -> FlowDefinition:
    return FlowDefinition.from_json(msgspec.json.decode(stored))


def _unfolding(stored: bytes) -> Callable[[], FlowDefinition]:
    packed = zlib.compress(stored, _QUICKLY)
    return lambda: _definition(zlib.decompress(packed))


class _Packed(Sequence[msgspec.Raw]):
    """Stored nodes, compressed in blocks. A run accesses neighbours, so one decompressed block is kept."""

    __slots__ = ("_blocks", "_open", "_size")

    def __init__(self, stored: Sequence[msgspec.Raw]) -> None:
        encode = msgspec.json.Encoder().encode
        starts = range(0, len(stored), BLOCK_NODES)
        self._blocks = [zlib.compress(encode(stored[start : start + BLOCK_NODES]), _QUICKLY) for start in starts]
        self._size = len(stored)
        self._open: tuple[int, list[msgspec.Raw]] = (-1, [])

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> msgspec.Raw: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[msgspec.Raw]: ...
    def __getitem__(self, place: int | slice) -> msgspec.Raw | Sequence[msgspec.Raw]:
        if isinstance(place, slice):
            return [self[one] for one in range(self._size)[place]]
        block, offset = divmod(range(self._size)[place], BLOCK_NODES)
        number, nodes = self._open
        if number != block:
            nodes = msgspec.json.decode(zlib.decompress(self._blocks[block]), type=list[msgspec.Raw])
            self._open = (block, nodes)
        return nodes[offset]


class _Nodes(Sequence[Node]):
    """Stored nodes, decoded on access."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Sequence[msgspec.Raw]) -> None:
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
        raise shape_error(error) from error


def _edges(stored: Iterable[msgspec.Raw]) -> Iterator[PlainEdge]:
    decode = msgspec.json.Decoder(_StoredEdge).decode
    for raw in stored:
        edge = decode(raw)
        yield PlainEdge(edge.upstream, edge.downstream, (bytes(edge.bindings), edge.is_order_only), partial(_edge, raw))


def _edge(stored: msgspec.Raw) -> Edge:
    return edge_of(msgspec.json.decode(stored))
