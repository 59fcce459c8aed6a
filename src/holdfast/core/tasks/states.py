"""State tables of tasks and attempts.

Every statement that changes a state is checked against these tables, and the reference page of states is drawn from
them. A live row stores a one-letter code (`LiveState`), from which the logical state that users see follows. The tables
define which transitions exist; they do not decide which one happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class TaskState(StrEnum):
    """The logical state of a task, as every public interface shows it."""

    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    FAILED = "failed"
    COMPLETED = "completed"
    CANCELED = "canceled"
    SKIPPED = "skipped"
    UPSTREAM_FAILED = "upstream_failed"


class AttemptState(StrEnum):
    """The state of one attempt; all but `running` are final."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELED = "canceled"
    RELEASED = "released"


class LiveState(StrEnum):
    """The state code that a live row stores; a task that ended has no live row."""

    QUEUED = "q"
    RESERVED = "v"
    RUNNING = "r"
    WAITING = "w"


RETRYING_LABEL = "retrying"
"""The label of a failed task whose `next_retry_at` is set."""

TASK_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = MappingProxyType(
    {
        TaskState.BLOCKED: frozenset(
            {TaskState.QUEUED, TaskState.SKIPPED, TaskState.UPSTREAM_FAILED, TaskState.CANCELED}
        ),
        TaskState.QUEUED: frozenset({TaskState.RUNNING, TaskState.CANCELED}),
        TaskState.RUNNING: frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.QUEUED}),
        TaskState.FAILED: frozenset({TaskState.QUEUED, TaskState.CANCELED, TaskState.BLOCKED}),
        TaskState.COMPLETED: frozenset({TaskState.BLOCKED}),
        TaskState.CANCELED: frozenset(),
        TaskState.SKIPPED: frozenset({TaskState.BLOCKED}),
        TaskState.UPSTREAM_FAILED: frozenset({TaskState.BLOCKED}),
    }
)

REDRIVE_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = MappingProxyType(
    {
        TaskState.FAILED: frozenset({TaskState.QUEUED, TaskState.BLOCKED}),
        TaskState.COMPLETED: frozenset({TaskState.BLOCKED}),
        TaskState.SKIPPED: frozenset({TaskState.BLOCKED}),
        TaskState.UPSTREAM_FAILED: frozenset({TaskState.BLOCKED}),
    }
)
"""The part of `TASK_TRANSITIONS` that leaves a terminal state. Such a transition always starts a new generation."""

RETRYING_TRANSITIONS: frozenset[TaskState] = frozenset({TaskState.QUEUED, TaskState.CANCELED})
"""The states that a failed task with `next_retry_at` may move to."""

ATTEMPT_TRANSITIONS: Mapping[AttemptState, frozenset[AttemptState]] = MappingProxyType(
    {
        state: frozenset(AttemptState) - {AttemptState.RUNNING} if state is AttemptState.RUNNING else frozenset()
        for state in AttemptState
    }
)

LIVE_TRANSITIONS: Mapping[LiveState, frozenset[LiveState]] = MappingProxyType(
    {
        LiveState.QUEUED: frozenset({LiveState.RUNNING, LiveState.RESERVED}),
        LiveState.RESERVED: frozenset({LiveState.RUNNING, LiveState.QUEUED, LiveState.WAITING}),
        LiveState.RUNNING: frozenset({LiveState.QUEUED, LiveState.WAITING}),
        LiveState.WAITING: frozenset({LiveState.QUEUED}),
    }
)
"""Transitions of a live row. Ending a task deletes the row."""

TERMINAL: frozenset[TaskState] = frozenset(
    {
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELED,
        TaskState.SKIPPED,
        TaskState.UPSTREAM_FAILED,
    }
)
"""States in which a generation ends; `failed` only if no retry is pending (see `is_terminal`)."""

TASK_CODES: Mapping[str, TaskState] = MappingProxyType(
    {
        LiveState.QUEUED.value: TaskState.QUEUED,
        LiveState.RESERVED.value: TaskState.QUEUED,
        LiveState.RUNNING.value: TaskState.RUNNING,
        LiveState.WAITING.value: TaskState.QUEUED,
    }
)
"""The logical state for a live row's code. A waiting row that waits for a retry is `failed` instead."""

ENDS: Mapping[str, TaskState] = MappingProxyType(
    {"c": TaskState.COMPLETED, "f": TaskState.FAILED, "x": TaskState.CANCELED}
)
"""The state in which a task, a node or a run ended, by its stored code."""

ATTEMPT_CODES: Mapping[AttemptState, str] = MappingProxyType(
    {
        AttemptState.COMPLETED: "c",
        AttemptState.FAILED: "f",
        AttemptState.TIMED_OUT: "t",
        AttemptState.LOST: "l",
        AttemptState.CANCELED: "x",
        AttemptState.RELEASED: "e",
    }
)
"""The code stored for an ended attempt. A running attempt is the live row itself and has no code."""

ATTEMPT_ENDS: Mapping[str, AttemptState] = MappingProxyType({code: state for state, code in ATTEMPT_CODES.items()})
"""The state in which an attempt ended, by its stored code."""


def can_move(from_: TaskState, to: TaskState) -> bool:
    """Return whether the table has this transition."""
    return to in TASK_TRANSITIONS[from_]


def is_terminal(state: TaskState, *, is_retrying: bool = False) -> bool:
    """Return whether this generation has ended; a failed task that waits for its retry has not."""
    return state in TERMINAL and not is_retrying


def logical_state(live: LiveState, *, is_retrying: bool = False) -> TaskState:
    """Return the state that users see for a live row; `is_retrying` means that it waits for a retry, not to start."""
    if live is LiveState.WAITING and is_retrying:
        return TaskState.FAILED
    return TASK_CODES[live.value]


def label(state: TaskState, *, is_retrying: bool = False) -> str:
    """Return the display name of the state."""
    return RETRYING_LABEL if state is TaskState.FAILED and is_retrying else state.value


def diagram() -> str:
    """Draw the task table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> blocked", "    [*] --> queued"]
    for from_, targets in TASK_TRANSITIONS.items():
        revivals = REDRIVE_TRANSITIONS.get(from_, frozenset())
        lines += [f"    {from_} --> {to}{_note(from_, to, is_redrive=to in revivals)}" for to in sorted(targets)]
    lines += [f"    {state} --> [*]" for state in TaskState if state in TERMINAL]
    return "\n".join(lines) + "\n"


_NOTES: Mapping[tuple[TaskState, TaskState], str] = MappingProxyType(
    {
        (TaskState.RUNNING, TaskState.QUEUED): "released",
        (TaskState.FAILED, TaskState.QUEUED): "retry or re-drive",
        (TaskState.FAILED, TaskState.CANCELED): "while retrying",
    }
)


def _note(from_: TaskState, to: TaskState, *, is_redrive: bool) -> str:
    note = _NOTES.get((from_, to), "re-drive" if is_redrive else "")
    return f" : {note}" if note else ""
