"""Nodes that run nothing and wait for the world: an event that somebody sends, or the word of a person."""

from __future__ import annotations

from typing import Any

from holdfast.core.nodes import NodeKind
from holdfast.flow.call import Callee, NodeCall

APPROVAL_PREFIX = "approval:"
"""The event that an approval waits for is its subject behind this."""


def wait_for(
    event: str,
    *,
    key: Any = None,
    name: str | None = None,
    timeout: str | float | None = None,
    after: Any = (),
    when: Any = None,
    trigger_rule: str | None = None,
) -> Any:
    """Inside a flow: wait until somebody sends this event; the node's output is what they sent.

    `key` tells events of one name apart, such as an order's number. Without `timeout` it waits as long as its run.
    """
    call = NodeCall(Callee(NodeKind.WAIT, event, event)).node(
        name, timeout=timeout, after=after, when=when, trigger_rule=trigger_rule
    )
    return call() if key is None else call(key=key)


def approval(
    subject: str,
    *,
    prompt: str = "",
    name: str | None = None,
    timeout: str | float | None = None,
    after: Any = (),
    when: Any = None,
    trigger_rule: str | None = None,
    **shown: Any,
) -> Any:
    """Inside a flow: wait until a person approves; the node's output is what they answered.

    `prompt` is what they are asked, and every other value, such as `report=build["summary"]`, is shown to them.
    """
    call = NodeCall(Callee(NodeKind.WAIT, f"{APPROVAL_PREFIX}{subject}", subject)).node(
        name, timeout=timeout, after=after, when=when, trigger_rule=trigger_rule
    )
    return call(prompt=prompt, **shown) if prompt else call(**shown)
