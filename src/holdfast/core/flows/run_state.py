"""The states of a run, and which may follow which.

A run is over when none of its tasks is pending (blocked, queued, running, failed with a retry waiting). It fails only
if some task is `failed`; upstream_failed, skipped and canceled tasks alone do not fail it. Cancelling the run itself
makes it canceled, whatever its tasks did. A verdict is written once per generation; only a re-drive opens the next.
The rule stands where the last open node is counted, in the statement `advance_runs`; the tests hold it to a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


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
        RunState.BLOCKED: frozenset({RunState.QUEUED, RunState.RUNNING}),
        RunState.FAILED: frozenset({RunState.QUEUED, RunState.RUNNING}),
        RunState.COMPLETED: frozenset({RunState.QUEUED, RunState.RUNNING}),
    }
)
"""What only a re-drive does: it reopens a run, in a new generation; one that kept something completed runs on. A
completed run reopens when one of its nodes is retried by name; a canceled run never does."""

RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        # A claim does not touch its run, so the first settled task may also be the last.
        RunState.QUEUED: frozenset(RunState) - {RunState.QUEUED},
        RunState.RUNNING: frozenset(RunState) - {RunState.QUEUED, RunState.RUNNING},
        # Tasks that were running when the run was paused still end, and may be the last.
        RunState.PAUSED: frozenset(RunState) - {RunState.PAUSED},
        # A task that failed for good stays failed within its generation: no way to completed but a re-drive.
        RunState.BLOCKED: frozenset(RunState) - {RunState.BLOCKED, RunState.COMPLETED},
        RunState.COMPLETED: RUN_REDRIVE_TRANSITIONS[RunState.COMPLETED],
        RunState.FAILED: RUN_REDRIVE_TRANSITIONS[RunState.FAILED],
        RunState.CANCELED: frozenset(),
    }
)
