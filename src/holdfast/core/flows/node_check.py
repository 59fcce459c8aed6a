"""Validation of a single node: its names, options, static config and declared ports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.core.flows.nodes import Node, NodeKind, TriggerRule
from holdfast.core.flows.ports import LIST_ITEMS_MAX, Port, is_key, slot_of
from holdfast.core.flows.refusal import refusal, shown
from holdfast.core.tasks.policy import BUDGET_MAX, SECONDS_MAX
from holdfast.core.values.bounds import NAME_CHARACTERS_MAX, PRIORITY_MAX, PRIORITY_MIN, valid_action
from holdfast.core.values.json_values import is_plain
from holdfast.errors import Invalid

PORTS_MAX = 256
SECONDS_MIN = 0.001
APPROVAL = "approval"
"""Reserved event name: waits for a person's approval use it."""

_IDLE_OPTIONS = {
    NodeKind.FLOW: frozenset({"queue", "timeout_seconds", "max_retries"}),
    NodeKind.WAIT: frozenset({"queue", "priority", "max_retries"}),
}
"""Options without effect for a node that has no task of its own, because it starts a run or only waits."""


def check_node(node: Node) -> None:
    """Raise `Invalid` for the first fault of a node."""
    check_name("node", node.name, node=node.name)
    check_name(f"action of node {node.name}", node.action, node=node.name)
    is_map = node.kind is NodeKind.MAP
    idle = _IDLE_OPTIONS.get(node.kind, frozenset())
    faults = {
        "kind": not isinstance(node.kind, NodeKind),
        "trigger_rule": not isinstance(node.trigger_rule, TriggerRule),
        "map_over": not is_key(node.map_over) if is_map else node.map_over is not None,
        "concurrency": node.concurrency is not None and not (is_map and is_whole(node.concurrency, 1, LIST_ITEMS_MAX)),
        "queue": node.queue is not None and not _is_name(node.queue),
        "priority": node.priority is not None and not is_whole(node.priority, PRIORITY_MIN, PRIORITY_MAX),
        "timeout_seconds": node.timeout_seconds is not None and not _is_seconds(node.timeout_seconds),
        "max_retries": node.max_retries is not None and not is_whole(node.max_retries, 0, BUDGET_MAX),
    }
    for option, is_wrong in faults.items():
        if is_wrong or (option in idle and getattr(node, option) is not None):
            raise refusal(
                "DAG_VALIDATION_NODE_INVALID",
                f"Node {node.name} ({node.kind}) cannot have {option} = {shown(getattr(node, option))}.",
                node=node.name,
                field=option,
            )
    if not isinstance(node.config, dict) or not is_plain(node.config):
        raise refusal(
            "DAG_VALIDATION_CONFIG_INVALID",
            f"The config of node {node.name} is not an object of plain JSON values.",
            "Use strings, finite numbers, true, false, null, lists and objects.",
            node=node.name,
        )
    if node.kind is NodeKind.WAIT:
        _check_wait(node)
    _check_ports(node)


def _check_wait(node: Node) -> None:
    """Check the options of a wait at definition time; a misspelt choice would otherwise show only when the
    wait ends.
    """
    choices = {"approval": (True, False), "on_timeout": ("fail", "skip")}
    for option, allowed in choices.items():
        configured = node.config.get(option, allowed[0])
        if not any(type(configured) is type(choice) and configured == choice for choice in allowed):
            raise refusal(
                "DAG_VALIDATION_NODE_INVALID",
                f"Node {node.name} (wait) cannot have {option} = {shown(configured)}.",
                f"Choose one of {', '.join(map(str, allowed))}.",
                node=node.name,
                field=option,
            )
    is_approval = node.config.get("approval") is True
    if not is_approval and (node.action == APPROVAL or node.action.startswith(f"{APPROVAL}:")):
        raise refusal(
            "DAG_VALIDATION_NODE_INVALID",
            f"Node {node.name} cannot wait for an event called {node.action}: such an event cannot be sent.",
            "Rename the event, or use an approval: `hf.approval`, in YAML `config: {approval: true}`.",
            node=node.name,
            field="action",
        )


def _check_ports(node: Node) -> None:
    inputs = node.inputs or ()
    outputs = node.outputs or ()
    keys: Sequence[object] = [port.key if isinstance(port, Port) else None for port in inputs]
    is_sound = all(_is_port_key(key) for key in keys) and all(map(is_key, outputs))
    if is_sound and len(set(keys)) == len(keys) and len(keys) <= PORTS_MAX and len(outputs) <= PORTS_MAX:
        return
    raise refusal(
        "DAG_VALIDATION_PORT_INVALID",
        f"Node {node.name} declares a port that is not a key, or one of them twice, or more than {PORTS_MAX}.",
        node=node.name,
    )


def check_name(what: str, name: object, **fields: object) -> None:
    """Refuse a value that cannot name a flow, a node or an action."""
    if not _is_name(name):
        raise refusal(
            "DAG_VALIDATION_NAME_INVALID",
            f"{shown(name)} cannot name the {what}.",
            f"Use 1 to {NAME_CHARACTERS_MAX} letters, digits or _ . : -, beginning with a letter, digit or _.",
            **fields,
        )


def _is_name(name: object) -> bool:
    try:
        valid_action(name)
    except Invalid:
        return False
    return True


def _is_port_key(key: object) -> bool:
    slot = slot_of(key)
    return slot is not None and slot.index is None


def is_whole(value: object, lowest: int, highest: int) -> bool:
    """Return whether the value is an integer within bounds; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _is_seconds(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) and SECONDS_MIN <= value <= SECONDS_MAX
