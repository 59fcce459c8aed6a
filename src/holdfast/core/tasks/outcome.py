"""How an attempt ended, as one closed union that executing, settling and reaping share."""

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
    """The action returned; `output` is its encoded JSON, `commits` what it did to datasets."""

    output: bytes
    commits: tuple[Commit, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The action raised, or reported a failure."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt passed its deadline, or its task waited beyond the queue's time to live."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Lost:
    """Nobody can say: the worker died, was killed or never attached."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Canceled:
    """Somebody asked for the task to stop, and it did."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """Handed back before user code started, or interrupted because its worker was asked to stop; spends no budget."""

    reason: str = ""


STOPPED = "the worker was asked to stop"
"""Why an attempt is handed back that a planned stop interrupted."""

Outcome: TypeAlias = Completed | Failed | TimedOut | Lost | Canceled | Released


def outcome_of(error: BaseException, *, now: datetime | None) -> Failed | Lost:
    """How an attempt ended whose code raised."""
    failure = failure_of(error, now=now)
    return Lost(failure) if isinstance(error, Killed) else Failed(failure)


def attempt_state(outcome: Outcome) -> AttemptState:
    """Name the state in which this outcome leaves its attempt."""
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
