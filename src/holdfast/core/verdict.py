"""How a run stands and how it ends, from the number of its tasks in each state.

A run is over when none of its tasks is pending (blocked, queued, running, failed with a retry waiting). It fails only
if some task is `failed`; upstream_failed, skipped and canceled tasks alone do not fail it. Cancelling the run itself
makes it canceled, whatever its tasks did. A verdict is written once per generation; only a re-drive opens the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from holdfast.core.states import TaskState


class RunState(StrEnum):
    """Where a run stands, as every public surface shows it."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


RUN_TERMINAL: frozenset[RunState] = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELED})

RUN_REDRIVE_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        RunState.BLOCKED: frozenset({RunState.RUNNING}),
        RunState.FAILED: frozenset({RunState.QUEUED}),
        RunState.COMPLETED: frozenset({RunState.QUEUED}),
    }
)
"""What only a re-drive does: it reopens a run, in a new generation. A completed run reopens when one of its nodes
is retried by name; a canceled run never does."""

RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        # A claim does not touch its run, so the first settled task may also be the last.
        RunState.QUEUED: frozenset(RunState) - {RunState.QUEUED},
        RunState.RUNNING: frozenset(RunState) - {RunState.QUEUED, RunState.RUNNING},
        # Tasks that were running when the run was paused still end, and may be the last.
        RunState.PAUSED: frozenset(RunState) - {RunState.PAUSED},
        # A task that failed for good stays failed within its generation: no way to completed but a re-drive.
        RunState.BLOCKED: frozenset({RunState.RUNNING, RunState.PAUSED, RunState.FAILED, RunState.CANCELED}),
        RunState.COMPLETED: frozenset({RunState.QUEUED}),
        RunState.FAILED: frozenset({RunState.QUEUED}),
        RunState.CANCELED: frozenset(),
    }
)


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


def can_move_run(from_: RunState, to: RunState) -> bool:
    """Tell whether the table has this transition."""
    return to in RUN_TRANSITIONS[from_]
