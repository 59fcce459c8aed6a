"""Outcomes of an attempt: one closed union shared by execution, settling and reaping."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, assert_never

from holdfast.core.datasets.dataset import Commit
from holdfast.core.tasks.failure import Failure, failure_of
from holdfast.core.tasks.signals import Killed
from holdfast.core.tasks.states import AttemptState


@dataclass(frozen=True, slots=True)
class Completed:
    """The action returned. `output` is its encoded JSON; `commits` are its dataset commits."""

    output: bytes
    commits: tuple[Commit, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The action raised, or reported a failure."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt exceeded its deadline, or its task exceeded the queue's time to live."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Lost:
    """The outcome is unknown: the worker died, was killed or never attached."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Canceled:
    """The task was canceled on request."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """Returned to the queue before user code started, or interrupted because its worker is stopping; spends
    no budget.
    """

    reason: str = ""


STOPPED = "the worker was asked to stop"
"""The release reason of an attempt that a planned stop interrupted."""

Outcome: TypeAlias = Completed | Failed | TimedOut | Lost | Canceled | Released


def outcome_of(error: BaseException, *, now: datetime | None) -> Failed | Lost:
    """Return the outcome of an attempt whose code raised."""
    failure = failure_of(error, now=now)
    return Lost(failure) if isinstance(error, Killed) else Failed(failure)


def attempt_state(outcome: Outcome) -> AttemptState:
    """Return the state in which this outcome leaves its attempt."""
    match outcome:
        case Completed():
            return AttemptState.COMPLETED
        case Failed():
            return AttemptState.FAILED
        case TimedOut():
            return AttemptState.TIMED_OUT
        case Lost():
            return AttemptState.LOST
        case Canceled():
            return AttemptState.CANCELED
        case Released():
            return AttemptState.RELEASED
        case _:
            assert_never(outcome)
