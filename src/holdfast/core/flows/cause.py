"""The upstream node that caused another node not to run: the nearest one that failed or was canceled."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.flows.plan import Plan
from holdfast.core.tasks.states import TaskState

_BROKEN = frozenset({TaskState.FAILED, TaskState.CANCELED, TaskState.UPSTREAM_FAILED})
_BLAMED = (TaskState.FAILED, TaskState.CANCELED)


def cause_of(plan: Plan, states: Sequence[str], node_no: int) -> int | None:
    """Walk upstream through nodes that did not run.

    Prefer a failure to a cancel, and a nearer node to a farther one.
    """
    seen = {node_no}
    layer = [node_no]
    found: dict[str, int] = {}
    while layer:
        above = [up for down in layer for up in plan.upstream[down] if up not in seen and states[up] in _BROKEN]
        layer = list(dict.fromkeys(above))
        seen.update(layer)
        for current in layer:
            found.setdefault(states[current], current)
    return next((found[state] for state in _BLAMED if state in found), None)
