"""Nodes that run nothing and wait for the world: an event that somebody sends, or the word of a person."""

from __future__ import annotations

from typing import Any

from holdfast.authoring.flow.call import Callee, NodeCall
from holdfast.core.flows.node_check import APPROVAL
from holdfast.core.flows.nodes import NodeKind


def wait_for(
    event: str,
    *,
    key: Any = None,
    timeout: str | float | None = None,
    on_timeout: str | None = None,
    **settings: Any,
) -> Any:
    """Inside a flow: wait until somebody sends this event; the node's output is what they sent.

    `key` tells events of one name apart, such as an order's number. Without `timeout` it waits as long as its run;
    after it the node fails, or with `on_timeout="skip"` is skipped. `name`, `after`, `when` and `trigger_rule` are as
    for any node.
    """
    call = NodeCall(Callee(NodeKind.WAIT, event, event)).node(timeout=timeout, **settings)
    return call(**_given(key=key, on_timeout=on_timeout))


def approval(
    subject: str,
    *,
    prompt: str | None = None,
    timeout: str | float | None = None,
    on_timeout: str | None = None,
    **settings: Any,
) -> Any:
    """Inside a flow: wait until a person approves this node of this run; a rejection fails the node.

    The node is called after the subject; its output says who approved. `prompt` is what they are asked; the rest is as
    for `wait_for`.
    """
    call = NodeCall(Callee(NodeKind.WAIT, APPROVAL, subject)).node(timeout=timeout, **settings)
    return call(approval=True, **_given(prompt=prompt, on_timeout=on_timeout))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
