"""Dead letters: their state table, the decisions of the sweep, and when an operator may retry.

A dead letter records that a task failed for good. It is not the task itself: a re-drive uses the ordinary path, and the
dead letter records who requested it, how often it was dispatched and how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from holdfast.errors import Invalid

SWEEP_ACTOR = "holdfast:dead-letter-dispatcher"
RESUME_REASON = "stateful_dead_letter_retry_dispatched"
AUDIT_OUTCOME = "requeued_for_dead_letter_retry"

DISPATCHES_MAX = 5
"""The most re-drives of one dead letter before it is parked for an operator; a re-drive may request fewer."""
BACKOFF_SECONDS_BASE = 1.0
BACKOFF_SECONDS_MAX = 300.0


class DeadLetterState(StrEnum):
    """The state of a dead letter."""

    OPEN = "open"
    RETRY_REQUESTED = "retry_requested"
    RETRYING = "retrying"
    RESOLVED = "resolved"
    IGNORED = "ignored"


UNRESOLVED: tuple[DeadLetterState, ...] = (
    DeadLetterState.OPEN,
    DeadLetterState.RETRY_REQUESTED,
    DeadLetterState.RETRYING,
)
"""The states that groups count: an operator has yet to act, or the engine is acting."""


class Disposition(StrEnum):
    """How a dead letter reached its state."""

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
    """What an operator may do about a dead letter."""

    RETRY = "retry"
    IGNORE = "ignore"
    ABANDON = "abandon"
    COMPENSATE = "compensate"


TRANSITIONS: Mapping[DeadLetterState, frozenset[DeadLetterState]] = MappingProxyType(
    {
        DeadLetterState.OPEN: frozenset(
            {DeadLetterState.RETRY_REQUESTED, DeadLetterState.IGNORED, DeadLetterState.RESOLVED}
        ),
        DeadLetterState.RETRY_REQUESTED: frozenset(
            {DeadLetterState.RETRYING, DeadLetterState.IGNORED, DeadLetterState.RESOLVED}
        ),
        DeadLetterState.RETRYING: frozenset(
            {DeadLetterState.RETRYING, DeadLetterState.IGNORED, DeadLetterState.RESOLVED}
        ),
        DeadLetterState.IGNORED: frozenset({DeadLetterState.RETRY_REQUESTED, DeadLetterState.RESOLVED}),
        DeadLetterState.RESOLVED: frozenset(),
    }
)
"""A retrying dead letter may be dispatched again; a resolved one never changes."""


class OwningRun(StrEnum):
    """The state of the run that owns a dead letter. A task outside a flow counts as its own run."""

    GONE = "gone"
    ACTIVE = "active"
    FAILED = "failed"
    BLOCKED = "blocked"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELED = "canceled"


RECOVERABLE = frozenset({OwningRun.FAILED, OwningRun.BLOCKED})


class SweepDecision(StrEnum):
    """What the sweep does with a dead letter."""

    LEAVE = "leave"
    RESOLVE = "resolve"
    EXHAUST = "exhaust"
    REDRIVE = "redrive"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterEvidence:
    """What the sweep knows about one dead letter. `owner_id` is the tenant of its run, None if the run was deleted."""

    state: DeadLetterState
    tenant_id: int
    owner_id: int | None
    stand: OwningRun
    is_superseded: bool
    dispatches: int
    dispatched_at: datetime | None
    dispatches_max: int = DISPATCHES_MAX
    can_retry: bool = True


def judge(letter: DeadLetterEvidence, *, at: datetime) -> SweepDecision:
    """Decide about one dead letter, in the order of the specification; the first rule that applies wins."""
    if letter.state not in (DeadLetterState.RETRY_REQUESTED, DeadLetterState.RETRYING) or not letter.can_retry:
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
    """Return the pause after the last of `dispatches` dispatches: 1 s · 2^n, at most 300 s, without jitter."""
    return min(BACKOFF_SECONDS_BASE * 2.0 ** min(dispatches, 20), BACKOFF_SECONDS_MAX)


def is_retry_ceiling_reached(*, retries: int, losses: int, max_retries: int) -> bool:
    """Return whether a failed task has used all attempts of its generation: `max_retries + 1`, lost ones included.

    If so, an operator's retry is refused; a re-drive starts a new generation.
    """
    return retries + losses + 1 >= max_retries + 1


def valid_dispatches(value: int) -> int:
    """Check how often a re-drive may dispatch a dead letter; raise `Invalid` (`invalid_dispatches`) if out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= DISPATCHES_MAX:
        raise Invalid(
            f"dispatches is {str(value)[:20]}: it must be a whole number from 1 to {DISPATCHES_MAX}.",
            code="invalid_dispatches",
            field="dispatches",
        )
    return value


def owner_state_of(*, state: str, failed: int, is_paused: bool, is_canceled: bool) -> OwningRun:
    """Return the state of a stored run; `state` is its stored code."""
    if state == "x" or is_canceled:
        return OwningRun.CANCELED
    if state == "f":
        return OwningRun.FAILED
    if state == "c":
        return OwningRun.COMPLETED
    if is_paused:
        return OwningRun.PAUSED
    return OwningRun.BLOCKED if failed else OwningRun.ACTIVE
