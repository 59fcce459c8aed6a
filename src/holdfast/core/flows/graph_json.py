"""JSON form of a definition's parts: stable keys, defaults left out, equal when read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.nodes import Binding, Edge, FlowInput, Node, NodeKind, TriggerRule
from holdfast.core.flows.ports import Port
from holdfast.core.flows.refusal import refusal, shown
from holdfast.errors import Invalid

_PLAIN_NODE = Node(name="", action="")
_PLAIN_CONDITION = Condition(upstream="")
_PLAIN_PORT = Port(key="")
_PLAIN_INPUT = FlowInput(name="")
_NODE_KEYS = tuple(field.name for field in fields(Node) if field.name not in {"inputs", "outputs", "condition"})


SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError)
"""The errors that reading raises if the stored value does not have the shape of a definition."""


def shape_error(error: Exception) -> Invalid:
    """Convert a shape error into `Invalid`."""
    return refusal(
        "DAG_VALIDATION_DEFINITION_SNAPSHOT_INVALID",
        f"The stored definition is malformed: {type(error).__name__} {shown(str(error))}.",
        "Register the flow again.",
    )


def node_to_json(node: Node) -> dict[str, Any]:
    plain = _changed(node, _PLAIN_NODE, _NODE_KEYS)
    if "timeout_seconds" in plain:
        plain["timeout_seconds"] = float(plain["timeout_seconds"])
    if "config" in plain:
        plain["config"] = dict(node.config)
    if node.inputs is not None:
        plain["inputs"] = [_changed(port, _PLAIN_PORT, ("key", "is_list", "is_required")) for port in node.inputs]
    if node.outputs is not None:
        plain["outputs"] = list(node.outputs)
    if node.condition is not None:
        plain["condition"] = _changed(node.condition, _PLAIN_CONDITION, ("upstream", "output_key", "operator", "value"))
    return plain


def node_of(stored: Mapping[str, Any]) -> Node:
    known = {key: stored[key] for key in _NODE_KEYS if key in stored}
    inputs, outputs, condition = stored.get("inputs"), stored.get("outputs"), stored.get("condition")
    return Node(
        **known
        | {
            "kind": NodeKind(stored.get("kind", NodeKind.TASK)),
            "trigger_rule": TriggerRule(stored.get("trigger_rule", TriggerRule.ALL_SUCCESS)),
            "config": dict(stored.get("config", {})),
            "inputs": None if inputs is None else tuple(_port_of(port) for port in _list(inputs)),
            "outputs": None if outputs is None else tuple(_list(outputs)),
            "condition": None if condition is None else _condition_of(condition),
        }
    )


def edge_to_json(edge: Edge) -> dict[str, Any]:
    plain: dict[str, Any] = {"upstream": edge.upstream, "downstream": edge.downstream}
    if edge.is_order_only:
        plain["is_order_only"] = True
    if edge.bindings:
        plain["bindings"] = [[binding.output_key, binding.input_key] for binding in edge.bindings]
    return plain


def edge_of(stored: Mapping[str, Any]) -> Edge:
    pairs = [_list(pair) for pair in _list(stored.get("bindings", []))]
    return Edge(
        upstream=_text(stored["upstream"]),
        downstream=_text(stored["downstream"]),
        bindings=tuple(Binding(output_key=_text(key), input_key=_text(target)) for key, target in pairs),
        is_order_only=bool(stored.get("is_order_only", False)),
    )


def input_to_json(flow_input: FlowInput) -> dict[str, Any]:
    return _changed(flow_input, _PLAIN_INPUT, ("name", "is_required", "default"))


def input_of(stored: Mapping[str, Any]) -> FlowInput:
    return FlowInput(
        name=stored["name"], is_required=bool(stored.get("is_required", True)), default=stored.get("default")
    )


def _port_of(stored: Mapping[str, Any]) -> Port:
    return Port(
        key=stored["key"],
        is_list=bool(stored.get("is_list", False)),
        is_required=bool(stored.get("is_required", False)),
    )


def _condition_of(stored: Mapping[str, Any]) -> Condition:
    return Condition(
        upstream=_text(stored["upstream"]),
        output_key=_text(stored.get("output_key", "")),
        operator=Operator(stored.get("operator", Operator.TRUTHY)),
        value=stored.get("value"),
    )


def _changed(part: object, plain: object, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that differ from their default, in order; enums as text."""
    values = ((key, getattr(part, key)) for key in keys)
    return {key: _value(value) for key, value in values if value != getattr(plain, key)}


def _value(value: Any) -> Any:
    return value.value if isinstance(value, NodeKind | TriggerRule | Operator) else value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{type(value).__name__} is not a list")
    return list(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text")
    return value
