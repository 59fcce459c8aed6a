"""The wire format of an explanation: its subject, then its content."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.explain.gates import Check
from holdfast.core.explain.task import Explanation


class ExplanationView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task, a run or a node is in its state, and what would change that."""

    task_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    code: str
    headline: str
    state: str
    checks: list[Check]
    evidence: list[str]
    moves: list[str]


def why_of(
    explanation: Explanation,
    *,
    task_id: str | UnsetType = UNSET,
    run_id: str | UnsetType = UNSET,
    node: str | UnsetType = UNSET,
) -> ExplanationView:
    """Return the explanation of a task, a run or a node."""
    return ExplanationView(
        task_id=task_id,
        run_id=run_id,
        node=node,
        code=explanation.code,
        headline=explanation.headline,
        state=explanation.state,
        checks=list(explanation.checks),
        evidence=list(explanation.evidence),
        moves=list(explanation.moves),
    )
