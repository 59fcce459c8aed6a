"""Nodes that wait for the outside world: for an event, or for a person's approval."""

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
    """Inside a flow, wait until this event is sent; the node's output is the event's payload.

    `key` distinguishes events of one name, such as by an order number. Without `timeout` the node waits as long as its
    run. After the timeout it fails, or with `on_timeout="skip"` is skipped. `name`, `after`, `when` and `trigger_rule`
    work as for any node.
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
    """Inside a flow, wait until a person approves this node of this run; a rejection fails the node.

    The node is named after the subject; its output contains who approved. `prompt` is the question to that person; the
    other parameters are as for `wait_for`.
    """
    call = NodeCall(Callee(NodeKind.WAIT, APPROVAL, subject)).node(timeout=timeout, **settings)
    return call(approval=True, **_given(prompt=prompt, on_timeout=on_timeout))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
