"""States of a run and their transitions.

A run is over when none of its tasks is pending (blocked, queued, running, failed with a pending retry). It fails only
if a task is `failed`; upstream_failed, skipped and canceled tasks alone do not fail it. Canceling the run makes it
canceled, whatever its tasks did. The final state is written once per generation; only a re-drive starts the next one.
The statement `advance_runs` implements the rule, where it counts the last open node; the tests compare it with a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class RunState(StrEnum):
    """The state of a run, as every public interface shows it."""

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
        RunState.BLOCKED: frozenset({RunState.QUEUED, RunState.RUNNING}),
        RunState.FAILED: frozenset({RunState.QUEUED, RunState.RUNNING}),
        RunState.COMPLETED: frozenset({RunState.QUEUED, RunState.RUNNING}),
    }
)
"""Transitions that only a re-drive makes. It reopens a run in a new generation; a run that keeps completed nodes
becomes running. A completed run reopens when one of its nodes is retried by name; a canceled run never does."""

RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        # A claim does not update its run, so the first settled task may also be the last.
        RunState.QUEUED: frozenset(RunState) - {RunState.QUEUED},
        RunState.RUNNING: frozenset(RunState) - {RunState.QUEUED, RunState.RUNNING},
        # Tasks that were running when the run was paused still end, and one may be the last.
        RunState.PAUSED: frozenset(RunState) - {RunState.PAUSED},
        # A task that failed for good stays failed within its generation, so only a re-drive leads to completed.
        RunState.BLOCKED: frozenset(RunState) - {RunState.BLOCKED, RunState.COMPLETED},
        RunState.COMPLETED: RUN_REDRIVE_TRANSITIONS[RunState.COMPLETED],
        RunState.FAILED: RUN_REDRIVE_TRANSITIONS[RunState.FAILED],
        RunState.CANCELED: frozenset(),
    }
)
