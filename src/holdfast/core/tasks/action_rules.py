"""How the nodes of an action run unless their flow says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.tasks.policy import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRules:
    """What an action declares, apart from its code."""

    queue: str
    priority: int
    policy: RetryPolicy
