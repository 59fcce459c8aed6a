"""Validation of a definition's parts, except cycles. The first fault is raised, naming its node and edge.

Everything is checked before anything is stored, in time linear in nodes, edges and bindings. For a node that does not
declare its ports, only contradictions are refused; other faults show when the input is resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.input_builder import (
    InputBuilder,
    bad_input_key,
    config_slots,
    conflict,
    list_keys,
    output_list_keys,
    put_binding,
    put_config,
    put_output,
)
from holdfast.core.flows.node_check import check_name, check_node, is_whole
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Edge, FlowInput, Node, NodeKind, TriggerRule
from holdfast.core.flows.ports import Port, Slot, is_key, slot_of
from holdfast.core.flows.refusal import refusal, shown, some_of
from holdfast.core.values.json_values import is_plain
from holdfast.errors import Invalid

NODES_MAX = 100_000
EDGES_MAX = 1_000_000
BINDINGS_MAX = 1_000_000
INPUTS_MAX = 1_000
VERSION_MAX = 2**31 - 1


def check_parts(
    *, name: object, version: object, nodes: Sequence[Node], edges: Sequence[Edge], inputs: Sequence[FlowInput]
) -> None:
    """Raise `Invalid` for the first fault of a definition's parts."""
    check_name("flow", name)
    if not is_whole(version, 1, VERSION_MAX):
        raise refusal("DAG_VALIDATION_VERSION_INVALID", f"Version {shown(version)} of {name} is not a positive number.")
    _check_counts(nodes, edges, inputs)
    run_keys = _run_keys(inputs)
    by_name: dict[str, Node] = {}
    for node in nodes:
        check_node(node)
        if node.name in by_name:
            raise refusal(
                "DAG_VALIDATION_NODE_DUPLICATE", f"Two nodes are named {node.name}.", "Rename one.", node=node.name
            )
        by_name[node.name] = node
    incoming = _checked_edges(edges, by_name, run_keys)
    for node in nodes:
        _check_input(node, incoming[node.name])
        if node.condition is not None:
            _check_condition(node, node.condition, incoming[node.name], by_name, run_keys)
    _check_output(incoming[RUN_OUTPUT])


def _check_counts(nodes: Sequence[Node], edges: Sequence[Edge], inputs: Sequence[FlowInput]) -> None:
    if not nodes:
        raise refusal("DAG_VALIDATION_NODES_EMPTY", "The flow has no nodes.", "Add at least one.")
    bindings = sum(len(edge.bindings) for edge in edges)
    for count, limit, what in (
        (len(nodes), NODES_MAX, "nodes"),
        (len(edges), EDGES_MAX, "edges"),
        (bindings, BINDINGS_MAX, "bindings"),
        (len(inputs), INPUTS_MAX, "inputs"),
    ):
        if count > limit:
            raise refusal(
                f"DAG_VALIDATION_{what.upper()}_TOO_MANY",
                f"The flow has {count} {what}; at most {limit} are allowed.",
                "Map over a list, or split it into flows.",
                limit=limit,
            )


def _run_keys(inputs: Sequence[FlowInput]) -> frozenset[str]:
    names: set[str] = set()
    for flow_input in inputs:
        if not is_key(flow_input.name) or flow_input.name in names:
            raise refusal(
                "DAG_VALIDATION_INPUT_INVALID",
                f"The flow's input {shown(flow_input.name)} is not a valid name, or is declared twice.",
            )
        if not is_plain(flow_input.default):
            raise refusal("DAG_VALIDATION_INPUT_INVALID", f"The default of input {flow_input.name} is not plain JSON.")
        names.add(flow_input.name)
    return frozenset(names)


def _checked_edges(
    edges: Sequence[Edge], nodes: Mapping[str, Node], run_keys: frozenset[str]
) -> Mapping[str, list[Edge]]:
    incoming: dict[str, list[Edge]] = {name: [] for name in (*nodes, RUN_OUTPUT)}
    pairs: set[tuple[str, str]] = set()
    for edge in edges:
        if edge.upstream not in nodes and edge.upstream != RUN_INPUT:
            raise _unknown(edge, "DAG_VALIDATION_NODE_NOT_FOUND", edge.upstream)
        if edge.downstream not in incoming:
            raise _unknown(edge, "DAG_VALIDATION_DOWNSTREAM_NODE_NOT_FOUND", edge.downstream)
        if edge.upstream == edge.downstream:
            raise _edge_refusal("DAG_VALIDATION_EDGE_SELF", edge, "connects a node to itself")
        pair = (edge.upstream, edge.downstream)
        if pair in pairs:
            raise _edge_refusal(
                "DAG_VALIDATION_EDGE_DUPLICATE", edge, "exists twice", "Put all its bindings on one edge."
            )
        pairs.add(pair)
        _check_edge(edge, nodes.get(edge.upstream), run_keys)
        incoming[edge.downstream].append(edge)
    return incoming


def _check_edge(edge: Edge, upstream: Node | None, run_keys: frozenset[str]) -> None:
    if edge.is_order_only:
        if edge.bindings or edge.upstream == RUN_INPUT or edge.downstream == RUN_OUTPUT:
            raise _edge_refusal("DAG_VALIDATION_EDGE_INVALID", edge, "is order-only: it takes two nodes and no binding")
        return
    if not edge.bindings:
        advice = "Bind an output to an input, or make the edge order-only."
        raise _edge_refusal("DAG_VALIDATION_BINDING_REQUIRED", edge, "has no binding", advice)
    for binding in edge.bindings:
        _check_output_key(binding.output_key, upstream, run_keys, where=f"Edge {edge}", edge=str(edge))


def _check_output_key(
    key: object, upstream: Node | None, run_keys: frozenset[str], *, where: str, **fields: object
) -> None:
    """Check a key that an edge or a condition reads. An upstream of None is the run's input."""
    if key == "":
        return
    code = "DAG_VALIDATION_BINDING_OUTPUT_KEY_MISSING"
    if not is_key(key):
        raise refusal(code, f"{where} reads {shown(key)}, which is not an output key.", "", **fields)
    if upstream is None:
        if key not in run_keys:
            advice = f"It takes {some_of(sorted(run_keys))}."
            raise refusal(code, f"{where} reads {key}, which is not an input of the flow.", advice, **fields)
    elif upstream.kind is NodeKind.MAP:
        advice = "Bind the complete output."
        raise refusal(code, f"{where} reads {key}, but {upstream.name} returns a list.", advice, **fields)
    elif upstream.outputs is not None and key not in upstream.outputs:
        advice = f"{upstream.name} returns {some_of(list(upstream.outputs))}."
        raise refusal(code, f"{where} reads {key}, which {upstream.name} does not return.", advice, **fields)


def _check_input(node: Node, incoming: Sequence[Edge]) -> None:
    """Build the node's input once without values, to find the conflicts that building it would meet."""
    ports = None if node.inputs is None else {port.key: port for port in node.inputs}
    for slot, key in config_slots(node):
        if ports is not None and not _fits(slot, ports):
            raise refusal(
                "DAG_VALIDATION_BINDING_INPUT_KEY_MISSING",
                f"Node {node.name} has config for {key}, which {node.action} does not take.",
                f"It takes {some_of(list(ports))}.",
                node=node.name,
                input_key=key,
            )
    keys = list_keys(node, incoming)
    assembly = InputBuilder(keys)
    put_config(node, assembly, keys)
    for edge in incoming:
        for binding in edge.bindings:
            bound = slot_of(binding.input_key)
            if bound is None or (ports is not None and not _fits(bound, ports)):
                raise bad_input_key(edge, binding, f"{node.name} has no such port")
            put_binding(assembly, edge, binding, None)
    required = [port.key for port in node.inputs or () if port.is_required]
    for key in [*required, *([node.map_over] if node.map_over else [])]:
        if not assembly.has(key):
            raise refusal(
                "DAG_VALIDATION_BINDING_REQUIRED",
                f"Node {node.name} needs {key}, but neither an edge nor its config provides it.",
                "Bind it, or set it in the config.",
                node=node.name,
                input_key=key,
            )
    _check_absence(node, incoming, set(required), keys)


def _check_absence(node: Node, incoming: Sequence[Edge], required: set[str], lists: frozenset[str]) -> None:
    """Refuse a required parameter that depends on an upstream without which the node may run."""
    if node.trigger_rule is TriggerRule.ALL_SUCCESS:
        return
    for edge in incoming:
        for binding in edge.bindings:
            key = binding.input_key
            if edge.upstream != RUN_INPUT and key in required and key not in lists:
                raise refusal(
                    "DAG_VALIDATION_BINDING_MAY_BE_ABSENT",
                    f"Node {node.name} needs {key}, and runs also if {edge.upstream} does not complete "
                    f"({node.trigger_rule.value}).",
                    f"Give {key} a default in {node.action}, or use the trigger rule all_success.",
                    node=node.name,
                    input_key=key,
                )


def _check_output(incoming: Sequence[Edge]) -> None:
    """Check the run's output like an input. A binding of the whole output excludes bindings of named parts."""
    assembly = InputBuilder(output_list_keys(incoming))
    parts: set[bool] = set()
    for edge in incoming:
        for binding in edge.bindings:
            slot = put_output(assembly, edge, binding, None)
            parts.add(slot.key == "")
            if len(parts) > 1:
                raise conflict(RUN_OUTPUT, "", f"edge {edge}")


def _check_condition(
    node: Node, condition: Condition, incoming: Sequence[Edge], nodes: Mapping[str, Node], run_keys: frozenset[str]
) -> None:
    is_known = condition.upstream == RUN_INPUT or any(edge.upstream == condition.upstream for edge in incoming)
    if not is_known or not isinstance(condition.operator, Operator) or not is_plain(condition.value):
        raise refusal(
            "DAG_VALIDATION_CONDITION_INVALID",
            f"The condition of node {node.name} is on {shown(condition.upstream)}, which is not upstream of it, "
            f"or its operator or value is unknown.",
            "Add an edge from there; it may be order-only.",
            node=node.name,
        )
    where = f"The condition of node {node.name}"
    _check_output_key(condition.output_key, nodes.get(condition.upstream), run_keys, where=where, node=node.name)


def _fits(slot: Slot, ports: Mapping[str, Port]) -> bool:
    port = ports.get(slot.key)
    return port is not None and (slot.index is None or port.is_list)


def _unknown(edge: Edge, code: str, name: str) -> Invalid:
    return _edge_refusal(code, edge, f"names {shown(name)}, which is not a node of this flow")


def _edge_refusal(code: str, edge: Edge, what: str, advice: str = "") -> Invalid:
    return refusal(code, f"Edge {edge} {what}.", advice, edge=str(edge))
