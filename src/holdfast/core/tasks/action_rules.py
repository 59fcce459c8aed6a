"""Defaults that an action declares for tasks and for flow nodes that do not override them."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.tasks.policy import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRules:
    """The declaration of an action without its code."""

    queue: str
    priority: int
    policy: RetryPolicy
