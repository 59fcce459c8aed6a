"""The decision after an attempt that did not complete: retry at a time, or stop, and why.

Settling and reaping both use it; the rule has no second copy. Pure: spent budgets and `jitter` arrive as values, so
every branch is one row of a table test.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, assert_never

from holdfast.core.tasks.backoff import backoff_seconds
from holdfast.core.tasks.classify import (
    UNCLASSIFIED,
    UNCLASSIFIED_RETRIED,
    Classification,
    RetryReason,
    classify,
    classify_unfinished,
)
from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Failed, Lost, TimedOut
from holdfast.core.tasks.policy import RetryPolicy
from holdfast.core.values.duration import DAY_SECONDS, human

__all__ = ["DELAY_SECONDS_MAX", "Decision", "RetryAt", "RetryPolicy", "Stop", "classification", "decide"]

DELAY_SECONDS_MAX = 30 * DAY_SECONDS
"""The longest delay that a failing side may request."""

RETRIES_EXHAUSTED = "retries_exhausted"
LOSSES_EXHAUSTED = "losses_exhausted"
RETRY_DISABLED = "retry_disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAt:
    """Try again after `delay`; with a zero delay the task returns to the queue at once."""

    delay: timedelta
    reason: str
    rule: str
    sentence: str
    classification: Classification


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the task. `reason` is the failure's reason, or the budget or switch that ended it."""

    reason: str
    rule: str
    sentence: str
    classification: Classification


Decision: TypeAlias = RetryAt | Stop


def decide(
    policy: RetryPolicy, outcome: Failed | TimedOut | Lost, *, retries: int, losses: int, jitter: float
) -> Decision:
    """Decide what follows an attempt that failed, timed out or was lost.

    `retries` and `losses` count what this generation has already spent: retries after failed and timed-out attempts,
    and retries after a loss. `jitter` is uniform in [0, 1].
    """
    found = classification(policy, outcome)
    budget = _Budget.of(policy, outcome, retries=retries, losses=losses)
    if not policy.is_enabled:
        sentence = f"Stopped: automatic retries are off; the failure was {found.reason} ({found.rule})."
        return _stop(RETRY_DISABLED, "policy is_enabled = false", sentence, found)
    if not found.is_retriable:
        sentence = _not_retriable(found, outcome.failure)
        return _stop(found.reason, found.rule, sentence, found)
    if budget.is_spent:
        return _stop(budget.exhausted, budget.rule, budget.exhausted_sentence(found.reason), found)
    seconds = _delay_seconds(policy, outcome.failure, found, budget, jitter=jitter)
    when = f"in {human(seconds)}" if seconds else "at once"
    sentence = f"{budget.title} {when}: {found.reason} ({found.rule})."
    return RetryAt(
        delay=timedelta(seconds=seconds), reason=found.reason, rule=found.rule, sentence=sentence, classification=found
    )


def _not_retriable(found: Classification, failure: Failure) -> str:
    if found.reason != RetryReason.UNCLASSIFIED:
        return f"Stopped: {found.reason} is not retriable ({found.rule})."
    option = f"retry_on=({failure.type.rpartition('.')[2]},)" if failure.type else "a rule"
    return f"Stopped: unclassified, not retried ({found.rule}); add {option} to the action to retry it."


def _stop(reason: str, rule: str, sentence: str, found: Classification) -> Stop:
    return Stop(reason=reason, rule=rule, sentence=sentence, classification=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    """The budget that an outcome spends."""

    spent: int
    limit: int
    is_loss: bool

    @classmethod
    def of(cls, policy: RetryPolicy, outcome: Failed | TimedOut | Lost, *, retries: int, losses: int) -> _Budget:
        if isinstance(outcome, Lost):
            return cls(spent=losses, limit=policy.max_losses, is_loss=True)
        return cls(spent=retries, limit=policy.max_retries, is_loss=False)

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.limit

    @property
    def exhausted(self) -> str:
        return LOSSES_EXHAUSTED if self.is_loss else RETRIES_EXHAUSTED

    @property
    def rule(self) -> str:
        return f"policy {'max_losses' if self.is_loss else 'max_retries'} = {self.limit}"

    @property
    def title(self) -> str:
        return f"Retry {self.spent + 1} of {self.limit}{' after a loss' if self.is_loss else ''}"

    def exhausted_sentence(self, reason: str) -> str:
        noun = "retries after a loss" if self.is_loss else "retries"
        spent = f"{self.limit} of {self.limit} {noun} spent" if self.limit else f"no {noun} allowed"
        return f"Stopped: {spent}; the last failure was {reason}."


def classification(policy: RetryPolicy, outcome: Failed | TimedOut | Lost) -> Classification:
    """Classify the outcome under this policy, independent of budgets."""
    match outcome:
        case Failed(failure):
            found = classify(failure, policy.rules)
            return UNCLASSIFIED_RETRIED if found == UNCLASSIFIED and policy.retry_unclassified else found
        case TimedOut(failure):
            return classify_unfinished(failure, policy.rules, otherwise=RetryReason.EXECUTION_TIMEOUT)
        case Lost(failure):
            return classify_unfinished(failure, policy.rules, otherwise=RetryReason.LOST)
        case _:
            assert_never(outcome)


def _delay_seconds(
    policy: RetryPolicy, failure: Failure, found: Classification, budget: _Budget, *, jitter: float
) -> float:
    """Return the requested delay if `Retry` named one, else the longer of the requested delay and the backoff.

    Jitter never shortens a requested delay.
    """
    requested_seconds = None if failure.retry_after is None else failure.retry_after.total_seconds()
    requested_seconds = None if requested_seconds is None else min(max(requested_seconds, 0.0), DELAY_SECONDS_MAX)
    if requested_seconds is not None and found.reason == RetryReason.REQUESTED:
        return requested_seconds
    return max(requested_seconds or 0.0, _backoff(policy, budget, jitter=jitter))


def _backoff(policy: RetryPolicy, budget: _Budget, *, jitter: float) -> float:
    """Return the backoff for the number of retries so far. The first loss is retried without a delay."""
    retry_count = budget.spent - 1 if budget.is_loss else budget.spent
    if retry_count < 0:
        return 0.0
    return backoff_seconds(
        retry_count=retry_count,
        base=policy.base_backoff_secs,
        multiplier=policy.backoff_multiplier,
        maximum=policy.max_backoff_secs,
        jitter_factor=policy.jitter_factor,
        jitter=jitter,
    )
