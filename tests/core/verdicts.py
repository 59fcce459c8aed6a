"""How a run stands and how it ends, from the number of its tasks in each state: the rule without SQL.

What the engine writes and shows is held to it; it has no other use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.flows.run_state import RunState
from holdfast.core.tasks.states import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """The three numbers that a verdict needs: tasks not over, tasks failed for good, tasks that ever started."""

    pending: int
    failed: int = 0
    started: int = 0

    @classmethod
    def of(cls, tasks: Mapping[TaskState, int], *, retrying: int = 0) -> RunCounts:
        """Sum up tasks by state; `retrying` of those counted as failed still wait for a retry."""
        waiting = tasks.get(TaskState.BLOCKED, 0) + tasks.get(TaskState.QUEUED, 0)
        running = tasks.get(TaskState.RUNNING, 0)
        failed = tasks.get(TaskState.FAILED, 0)
        started = running + failed + tasks.get(TaskState.COMPLETED, 0)
        return cls(pending=waiting + running + retrying, failed=failed - retrying, started=started)


def verdict(counts: RunCounts, *, is_canceled: bool = False) -> RunState | None:
    """Say how the run ended, or None while a task is pending. `is_canceled`: somebody canceled the run itself."""
    if counts.pending:
        return None
    if is_canceled:
        return RunState.CANCELED
    return RunState.FAILED if counts.failed else RunState.COMPLETED


def standing(counts: RunCounts, *, is_canceled: bool = False, is_paused: bool = False) -> RunState:
    """Say how the run stands: its verdict, or what holds it, or how far it is.

    Blocked: a task failed for good while others are not over. A canceled run whose tasks still stop is shown as
    running, also when it was paused.
    """
    ended = verdict(counts, is_canceled=is_canceled)
    if ended is not None:
        return ended
    if is_canceled:
        return RunState.RUNNING
    if is_paused:
        return RunState.PAUSED
    if counts.failed:
        return RunState.BLOCKED
    return RunState.RUNNING if counts.started else RunState.QUEUED
