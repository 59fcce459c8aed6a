"""The examples of the second design document, as they stand there."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.backoff import backoff_seconds
from holdfast.core.tasks.classify import classify
from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.policy import RetryPolicy
from holdfast.core.tasks.retry import RetryAt, Stop, decide


def backoff(attempt: int, jitter: float) -> float:
    policy = RetryPolicy()
    return backoff_seconds(
        retry_count=attempt,
        base=policy.base_backoff_secs,
        multiplier=policy.backoff_multiplier,
        maximum=policy.max_backoff_secs,
        jitter_factor=policy.jitter_factor,
        jitter=jitter,
    )


@pytest.mark.parametrize(
    ("attempt", "least", "most"),
    [(0, 0.8, 1.2), (1, 1.6, 2.4), (2, 3.2, 4.8), (3, 6.4, 9.6), (30, 300 * 0.8, 300 * 1.2)],
)
def test_backoff_calculation_example(attempt, least, most):
    assert (backoff(attempt, 0.0), backoff(attempt, 1.0)) == (pytest.approx(least), pytest.approx(most))


@pytest.mark.parametrize(
    "message",
    [
        "Worker queue TTL expired",
        "Worker unavailable",
        "Timeout",
        "timed out",
        "Heartbeat stale",
        "Transient error",
        "temporary error",
        "Connection refused",
        "connection reset",
    ],
)
def test_retriable_failure_patterns(message):
    assert classify(Failure(code="x", message=message)).is_retriable


@pytest.mark.parametrize(
    "message",
    ["Validation error", "Permission denied", "Action not found", "Invalid parameters", "something nobody has seen"],
)
def test_non_retriable_failures(message):
    assert not classify(Failure(code="x", message=message)).is_retriable


def test_retry_config_defaults():
    policy = RetryPolicy()
    assert (policy.is_enabled, policy.base_backoff_secs, policy.max_backoff_secs) == (True, 1, 300)
    assert (policy.backoff_multiplier, policy.jitter_factor) == (2.0, 0.2)


def test_exhaustion_handling_stops_at_max_retries():
    outcome, policy = Failed(Failure(code="x", message="connection reset")), RetryPolicy(max_retries=2)
    decisions = [decide(policy, outcome, retries=spent, losses=0, jitter=0.5) for spent in range(3)]
    assert [type(one) for one in decisions] == [RetryAt, RetryAt, Stop]
    assert (decisions[2].reason, decisions[2].classification.reason) == ("retries_exhausted", "connection_error")
