"""Flow definitions and their graph: order, neighbours, reachability, counters.

A definition is validated before it is stored. A run keeps a snapshot of it and never sees later edits. Nodes are
numbered by their position in the definition, and bindings append in the order of the edges, so both orders are part of
the definition. Nothing here depends on the progress of a run.
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
    shape_error,
)
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Edge, FlowInput, Node
from holdfast.core.flows.refusal import refusal
from holdfast.core.flows.topology import cycle_among, reachable, topological

DEFINITION_BYTES_MAX = 32 * 1024 * 1024
"""The limit on a definition as JSON: enough for the maximum number of nodes, each with a small config."""

_CYCLE_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDefinition:
    """A versioned graph of nodes, as its author wrote it."""

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
        """Index the nodes and the edges between them, without edges from the run's input or to its output."""
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
        """Find a node by a linear scan; raise `DAG_VALIDATION_NODE_NOT_FOUND` if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise refusal("DAG_VALIDATION_NODE_NOT_FOUND", f"{self.name} has no node {name}.", node=name)

    def incoming(self) -> Mapping[str, tuple[Edge, ...]]:
        """Return the edges into each node and into `$output`, in order, including those from `$input`."""
        found: dict[str, list[Edge]] = {name: [] for name in (*(node.name for node in self.nodes), RUN_OUTPUT)}
        for edge in self.edges:
            found[edge.downstream].append(edge)
        return {name: tuple(edges) for name, edges in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the definition as plain JSON values; fields that equal their default are left out."""
        return {
            "name": self.name,
            "version": self.version,
            "nodes": [node_to_json(node) for node in self.nodes],
            "edges": [edge_to_json(edge) for edge in self.edges],
            "inputs": [input_to_json(flow_input) for flow_input in self.inputs],
        }

    @classmethod
    def from_json(cls, stored: Any) -> FlowDefinition:
        """Read a stored definition without validating its meaning again.

        A value of another shape raises `DAG_VALIDATION_DEFINITION_SNAPSHOT_INVALID`. Unknown keys are ignored, because
        several versions of Holdfast may run at the same time.
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
            raise shape_error(error) from error

    def digest_input(self) -> bytes:
        """Serialize the definition so that equal definitions give equal bytes, whatever the order of config keys."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()

    def digest(self) -> str:
        """Return the content hash, which reveals a flow that changed under the same version."""
        return digest_of(self.digest_input())


def digest_of(written: bytes) -> str:
    """Hash a definition as `digest_input` serialized it."""
    return hashlib.sha256(written).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes and the edges between them, indexed. `number` is a node's position in its definition."""

    names: tuple[str, ...]
    number: Mapping[str, int]
    upstream: Mapping[str, list[str]]
    downstream: Mapping[str, list[str]]
    order: tuple[str, ...]
    """Every node after its upstreams; ties in the order of the definition."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Nodes without upstreams."""
        return tuple(name for name in self.names if not self.upstream[name])

    def descendants(self, roots: Iterable[str]) -> tuple[str, ...]:
        """Return the roots and all nodes downstream of them, in topological order."""
        found = reachable(roots, self.downstream)
        return tuple(name for name in self.order if name in found)

    def pending(self) -> dict[str, int]:
        """Return for each node how many upstreams a new run waits for."""
        return {name: len(self.upstream[name]) for name in self.names}


def _cyclic(cycle: tuple[str, ...]) -> Exception:
    named = [*cycle[:_CYCLE_SHOWN_MAX], *(["…"] if len(cycle) > _CYCLE_SHOWN_MAX else []), cycle[0]]
    return refusal(
        "DAG_VALIDATION_CYCLE",
        f"The flow has a cycle: {' → '.join(named)}.",
        "Remove one of its edges.",
        cycle=list(cycle[: _CYCLE_SHOWN_MAX + 1]),
    )
