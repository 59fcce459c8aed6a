"""Edges into a node: one edge per upstream, in the order in which upstreams are first named.

Flows from code and from YAML both use this function, so that equal flows have equal definitions byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core.flows.condition import Condition
from holdfast.core.flows.nodes import RUN_INPUT, Binding, Edge


class Source(NamedTuple):
    """The source of one input."""

    input_key: str
    upstream: str
    output_key: str


def edges_into(
    downstream: str, sources: Iterable[Source], *, after: Iterable[str] = (), condition: Condition | None = None
) -> list[Edge]:
    """Return the edges into one node: bindings first, then order-only edges, which a condition on a node needs too."""
    bindings: dict[str, list[Binding]] = {}
    for source in sources:
        binding = Binding(output_key=source.output_key, input_key=source.input_key)
        bindings.setdefault(source.upstream, []).append(binding)
    edges = [Edge(upstream=name, downstream=downstream, bindings=tuple(bound)) for name, bound in bindings.items()]
    order = [*after, *([] if condition is None or condition.upstream == RUN_INPUT else [condition.upstream])]
    alone = [name for name in dict.fromkeys(order) if name not in bindings]
    return edges + [Edge(upstream=name, downstream=downstream, is_order_only=True) for name in alone]
