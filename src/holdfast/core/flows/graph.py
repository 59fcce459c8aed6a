"""A flow's definition as one value, and its graph: order, neighbours, reach, counters.

A definition is validated before it is stored; a run keeps a snapshot of it and never sees later edits. Nodes are
numbered by their place in the definition, and bindings append in the order of the edges, so both orders are part of it.
Nothing here knows how far a run is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.flows.graph_check import check_parts
from holdfast.core.flows.graph_json import (
    SHAPE_ERRORS,
    edge_of,
    edge_to_json,
    input_of,
    input_to_json,
    node_of,
    node_to_json,
    shapeless,
)
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Edge, FlowInput, Node
from holdfast.core.flows.refusal import refusal
from holdfast.core.flows.topology import cycle_among, reachable, topological

DEFINITION_BYTES_MAX = 32 * 1024 * 1024
"""A definition as JSON: room for the most nodes that a flow may have, each with a little config."""

_CYCLE_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDefinition:
    """A versioned graph of nodes, as people wrote it."""

    name: str
    version: int = 1
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    inputs: tuple[FlowInput, ...] = ()

    def validated(self) -> FlowDefinition:
        """Return this definition, or raise `Invalid` with the code of its first fault, naming node and edge."""
        check_parts(name=self.name, version=self.version, nodes=self.nodes, edges=self.edges, inputs=self.inputs)
        graph = self.graph()
        if len(graph.order) < len(self.nodes):
            ordered = set(graph.order)
            cycle = cycle_among([name for name in graph.names if name not in ordered], graph.upstream)
            raise _cyclic(cycle)
        if (size := len(self.digest_input())) > DEFINITION_BYTES_MAX:
            raise refusal(
                "DAG_VALIDATION_DEFINITION_TOO_LARGE",
                f"The definition of {self.name} has {size} bytes; at most {DEFINITION_BYTES_MAX} are allowed.",
                "Keep large data elsewhere and configure a reference to it, or split the flow.",
                limit=DEFINITION_BYTES_MAX,
            )
        return self

    def graph(self) -> Graph:
        """Index the nodes and the edges between them; edges from the run's input or to its output order nothing."""
        names = tuple(node.name for node in self.nodes)
        upstream: dict[str, list[str]] = {name: [] for name in names}
        downstream: dict[str, list[str]] = {name: [] for name in names}
        for edge in self.edges:
            if edge.upstream != RUN_INPUT and edge.downstream != RUN_OUTPUT:
                upstream[edge.downstream].append(edge.upstream)
                downstream[edge.upstream].append(edge.downstream)
        return Graph(
            names=names,
            number={name: number for number, name in enumerate(names)},
            upstream=upstream,
            downstream=downstream,
            order=topological(names, upstream, downstream),
        )

    def node(self, name: str) -> Node:
        """Find one node by a scan; `DAG_VALIDATION_NODE_NOT_FOUND` if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise refusal("DAG_VALIDATION_NODE_NOT_FOUND", f"{self.name} has no node {name}.", node=name)

    def incoming(self) -> Mapping[str, tuple[Edge, ...]]:
        """Give the edges into each node, and into `$output`, in their order; those from `$input` among them."""
        found: dict[str, list[Edge]] = {name: [] for name in (*(node.name for node in self.nodes), RUN_OUTPUT)}
        for edge in self.edges:
            found[edge.downstream].append(edge)
        return {name: tuple(edges) for name, edges in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Give the definition as plain JSON values; what equals its default is left out."""
        return {
            "name": self.name,
            "version": self.version,
            "nodes": [node_to_json(node) for node in self.nodes],
            "edges": [edge_to_json(edge) for edge in self.edges],
            "inputs": [input_to_json(one) for one in self.inputs],
        }

    @classmethod
    def from_json(cls, stored: Any) -> FlowDefinition:
        """Read a stored definition without validating its meaning again.

        What does not have its shape is `DAG_VALIDATION_DEFINITION_SNAPSHOT_INVALID`; unknown keys are ignored,
        because versions may run side by side.
        """
        try:
            return cls(
                name=stored["name"],
                version=stored["version"],
                nodes=tuple(map(node_of, stored["nodes"])),
                edges=tuple(map(edge_of, stored.get("edges", []))),
                inputs=tuple(map(input_of, stored.get("inputs", []))),
            )
        except SHAPE_ERRORS as error:
            raise shapeless(error) from error

    def digest_input(self) -> bytes:
        """Write the definition so that equal ones are equal byte for byte, whatever the order of config keys."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()

    def digest(self) -> str:
        """Name this content: a changed flow under an old version shows by it."""
        return digest_of(self.digest_input())


def digest_of(written: bytes) -> str:
    """Name a definition as `digest_input` wrote it."""
    return hashlib.sha256(written).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes and the edges between them, indexed. `number` is a node's place in its definition."""

    names: tuple[str, ...]
    number: Mapping[str, int]
    upstream: Mapping[str, list[str]]
    downstream: Mapping[str, list[str]]
    order: tuple[str, ...]
    """Every node after its upstreams; ties in the order of the definition."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Nodes that wait for nobody."""
        return tuple(name for name in self.names if not self.upstream[name])

    def descendants(self, roots: Iterable[str]) -> tuple[str, ...]:
        """Give the roots and all nodes downstream of them, in topological order."""
        found = reachable(roots, self.downstream)
        return tuple(name for name in self.order if name in found)

    def pending(self) -> dict[str, int]:
        """Count, per node, the upstreams that a new run waits for."""
        return {name: len(self.upstream[name]) for name in self.names}


def _cyclic(cycle: tuple[str, ...]) -> Exception:
    named = [*cycle[:_CYCLE_SHOWN_MAX], *(["…"] if len(cycle) > _CYCLE_SHOWN_MAX else []), cycle[0]]
    return refusal(
        "DAG_VALIDATION_CYCLE",
        f"The flow has a cycle: {' → '.join(named)}.",
        "Remove one of its edges.",
        cycle=list(cycle[: _CYCLE_SHOWN_MAX + 1]),
    )
