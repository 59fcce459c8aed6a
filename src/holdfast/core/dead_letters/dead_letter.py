"""Dead letters: their life as a table, what the sweep makes of each, and when an operator may retry.

A letter records that a task failed for good. It is never the task: re-driving goes through the ordinary path, and the
letter remembers who asked, how often it was tried and how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from holdfast.errors import Invalid

DISPATCHER_ACTOR = "holdfast:dead-letter-dispatcher"
RESUME_REASON = "stateful_dead_letter_retry_dispatched"
AUDIT_OUTCOME = "requeued_for_dead_letter_retry"

DISPATCHES_MAX = 5
"""The most re-drives of one dead letter before it is parked for an operator; a re-drive may ask for fewer."""
BACKOFF_SECONDS_BASE = 1.0
BACKOFF_SECONDS_MAX = 300.0


class LetterState(StrEnum):
    """Where a dead letter stands."""

    OPEN = "open"
    RETRY_REQUESTED = "retry_requested"
    RETRYING = "retrying"
    RESOLVED = "resolved"
    IGNORED = "ignored"


UNRESOLVED: tuple[LetterState, ...] = (LetterState.OPEN, LetterState.RETRY_REQUESTED, LetterState.RETRYING)
"""What groups count: somebody has yet to act, or the engine is acting."""


class Disposition(StrEnum):
    """How a letter came to be where it is."""

    RETRY_REQUESTED = "retry_requested"
    RETRY_DISPATCHED = "retry_dispatched"
    RETRY_SUCCEEDED = "retry_succeeded"
    RETRY_EXHAUSTED = "retry_exhausted"
    RETRY_FAILED = "retry_failed"
    IGNORED = "ignored"
    ABANDONED = "abandoned"
    RESOLVED = "resolved"
    SUPERSEDED = "superseded"


class RecoveryOption(StrEnum):
    """What may be done about a letter."""

    RETRY = "retry"
    IGNORE = "ignore"
    ABANDON = "abandon"
    COMPENSATE = "compensate"


TRANSITIONS: Mapping[LetterState, frozenset[LetterState]] = MappingProxyType(
    {
        LetterState.OPEN: frozenset({LetterState.RETRY_REQUESTED, LetterState.IGNORED, LetterState.RESOLVED}),
        LetterState.RETRY_REQUESTED: frozenset({LetterState.RETRYING, LetterState.IGNORED, LetterState.RESOLVED}),
        LetterState.RETRYING: frozenset({LetterState.RETRYING, LetterState.IGNORED, LetterState.RESOLVED}),
        LetterState.IGNORED: frozenset({LetterState.RETRY_REQUESTED, LetterState.RESOLVED}),
        LetterState.RESOLVED: frozenset(),
    }
)
"""A letter that is retrying may be dispatched again; one that is resolved stays so."""


class OwningRun(StrEnum):
    """Where the run that owns a letter stands. A task outside a flow counts as its own run."""

    GONE = "gone"
    ACTIVE = "active"
    FAILED = "failed"
    BLOCKED = "blocked"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELED = "canceled"


RECOVERABLE = frozenset({OwningRun.FAILED, OwningRun.BLOCKED})


class SweepDecision(StrEnum):
    """What the sweep does about a letter."""

    LEAVE = "leave"
    RESOLVE = "resolve"
    EXHAUST = "exhaust"
    REDRIVE = "redrive"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFacts:
    """What the sweep knows about one letter. `owner_id` is the tenant of its run, None when the run is gone."""

    state: LetterState
    tenant_id: int
    owner_id: int | None
    stand: OwningRun
    is_superseded: bool
    dispatches: int
    dispatched_at: datetime | None
    dispatches_max: int = DISPATCHES_MAX
    can_retry: bool = True


def judge(letter: LetterFacts, *, at: datetime) -> SweepDecision:
    """Decide about one letter, in the order of the specification; the first that applies counts."""
    if letter.state not in (LetterState.RETRY_REQUESTED, LetterState.RETRYING) or not letter.can_retry:
        return SweepDecision.LEAVE
    if letter.stand is OwningRun.GONE or letter.owner_id != letter.tenant_id:
        return SweepDecision.LEAVE
    if letter.is_superseded:
        return SweepDecision.RESOLVE
    if letter.dispatches >= letter.dispatches_max:
        return SweepDecision.EXHAUST
    if letter.stand not in RECOVERABLE:
        return SweepDecision.LEAVE
    backoff = timedelta(seconds=dispatch_backoff_seconds(letter.dispatches))
    if letter.dispatched_at is not None and at < letter.dispatched_at + backoff:
        return SweepDecision.LEAVE
    return SweepDecision.REDRIVE


def dispatch_backoff_seconds(dispatches: int) -> float:
    """The pause after the last dispatch when there were this many: 1 s · 2^n, at most 300 s, without jitter."""
    return min(BACKOFF_SECONDS_BASE * 2.0 ** min(dispatches, 20), BACKOFF_SECONDS_MAX)


def is_retry_ceiling_reached(*, retries: int, losses: int, max_retries: int) -> bool:
    """Whether a failed task has had all attempts that its generation may have: `max_retries + 1`, lost ones included.

    An operator's retry is refused then; a re-drive starts a new generation.
    """
    return retries + losses + 1 >= max_retries + 1


def valid_dispatches(given: int) -> int:
    """How often a re-drive may dispatch a dead letter, or `Invalid` (`invalid_dispatches`)."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= DISPATCHES_MAX:
        raise Invalid(
            f"dispatches is {str(given)[:20]}: it must be a whole number from 1 to {DISPATCHES_MAX}.",
            code="invalid_dispatches",
            field="dispatches",
        )
    return given


def stand_of_run(*, state: str, failed: int, is_paused: bool, is_canceled: bool) -> OwningRun:
    """Where a stored run stands; `state` is its letter."""
    if state == "x" or is_canceled:
        return OwningRun.CANCELED
    if state == "f":
        return OwningRun.FAILED
    if state == "c":
        return OwningRun.COMPLETED
    if is_paused:
        return OwningRun.PAUSED
    return OwningRun.BLOCKED if failed else OwningRun.ACTIVE
