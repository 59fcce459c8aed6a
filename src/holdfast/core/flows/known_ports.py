"""Check of a flow against the parameters of its actions, where these are known.

The parameters of an action belong to its code, not to the definition. The ports are filled in for the check and not
stored, so that an action can get another optional input without a new version of every flow that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.input_builder import list_keys
from holdfast.core.flows.nodes import Edge, Node
from holdfast.core.flows.ports import Port

Ports = Mapping[str, tuple[Port, ...] | None]
"""The ports of each node by its name; None or no entry where they are unknown."""


def check_against(definition: FlowDefinition, ports: Ports) -> FlowDefinition:
    """Return the definition, or raise `Invalid` with the code of its first fault, ports included."""
    if all(known is None for known in ports.values()):
        return definition.validated()
    incoming: dict[str, list[Edge]] = {}
    for edge in definition.edges:
        incoming.setdefault(edge.downstream, []).append(edge)
    nodes = tuple(_filled(node, ports.get(node.name), incoming.get(node.name, [])) for node in definition.nodes)
    replace(definition, nodes=nodes).validated()
    return definition


def _filled(node: Node, known: tuple[Port, ...] | None, incoming: list[Edge]) -> Node:
    """Fill in a node's ports. A parameter addressed by index is a list port; any other takes one value."""
    if known is None or node.inputs is not None:
        return node
    lists = list_keys(node, incoming)
    return replace(node, inputs=tuple(replace(port, is_list=port.key in lists) for port in known))
