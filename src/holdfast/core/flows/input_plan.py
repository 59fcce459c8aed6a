"""Precomputed input plans: for each node, which upstream values go to which input keys.

Most nodes take upstream values one by one, or gather them into lists in edge order. For these a recipe builds the same
input as `resolve_input`, many times faster. Every other case is left to `resolve_input`: indexed list slots,
conditions, absent values and values that do not fit. `resolve_input` also raises the descriptive errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.flows.input_builder import list_keys
from holdfast.core.flows.nodes import RUN_INPUT, Edge, Node

Source = tuple[str, str]
"""An upstream and the key of its output; an empty key is the whole output."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputPlan:
    """The sources of one node's input."""

    upstreams: tuple[int, ...]
    """Numbers of the nodes whose outputs the input or the condition reads."""
    config: Mapping[str, Any]
    singles: tuple[tuple[str, Source], ...]
    lists: tuple[tuple[str, tuple[Source, ...]], ...]
    is_ordinary: bool

    def build(self, run_input: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Build the node's input; None where only `resolve_input` can decide."""
        if not self.is_ordinary:
            return None
        try:
            built = {**self.config}
            # Same as `_value`, inlined: this loop runs for thousands of nodes, and most have only single values.
            for key, (upstream, output_key) in self.singles:
                output = run_input if upstream == RUN_INPUT else outputs[upstream]
                built[key] = output[output_key] if output_key else output
            for key, sources in self.lists:
                built[key] = [_value(source, run_input, outputs) for source in sources]
        except (KeyError, TypeError):
            return None
        return built


def input_plan_of(node: Node, incoming: Sequence[Edge], number: Mapping[str, int]) -> InputPlan:
    """Compute the recipe of one node."""
    names = {edge.upstream for edge in incoming if edge.bindings}
    if node.condition is not None:
        names.add(node.condition.upstream)
    gathered = list_keys(node, incoming)
    singles: dict[str, Source] = {}
    lists: dict[str, list[Source]] = {}
    is_ordinary = node.condition is None and gathered.isdisjoint(node.config)
    for edge in incoming:
        for binding in edge.bindings:
            key, source = binding.input_key, (edge.upstream, binding.output_key)
            if "[" in key or key in singles or key in node.config:
                is_ordinary = False
            elif key in gathered:
                lists.setdefault(key, []).append(source)
            else:
                singles[key] = source
    return InputPlan(
        upstreams=tuple(number[name] for name in names if name != RUN_INPUT),
        config=node.config,
        singles=tuple(singles.items()),
        lists=tuple((key, tuple(sources)) for key, sources in lists.items()),
        is_ordinary=is_ordinary and not any("[" in key for key in node.config),
    )


def _value(source: Source, run_input: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    upstream, key = source
    output = run_input if upstream == RUN_INPUT else outputs[upstream]
    return output[key] if key else output
