"""Each failure gets the name the specification gives it, from the first source that knows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.classify import (
    CODES,
    EXCEPTIONS,
    NOT_RETRIABLE,
    PATTERNS,
    RetryReason,
    Rule,
    classify,
)
from holdfast.core.tasks.failure import Failure, FailureReport, failure_of
from holdfast.core.tasks.signals import Fatal, Retry

NON_RETRIABLE_MESSAGES = ["validation", "permission denied", "action not found", "invalid parameters"]
MESSAGES = {
    "Worker queue TTL expired": "queue_timeout",
    "worker unavailable": "worker_unavailable",
    "Timeout": "execution_timeout",
    "it TIMED OUT": "execution_timeout",
    "heartbeat stale for 40 s": "heartbeat_stale",
    "a transient thing": "transient_error",
    "Temporary failure in name resolution": "transient_error",
    "Connection refused": "connection_error",
    "connection reset by peer": "connection_error",
    "rate limited": "rate_limited",
    "HTTP Error 429: slow down": "rate_limited",
    "Validation failed": "validation",
    "Permission denied": "permission_denied",
    "Action not found": "action_not_found",
    "Invalid parameters: x": "invalid_parameters",
    "division by zero": "unclassified",
    "": "unclassified",
    "order 14290 is missing": "unclassified",
}


def a_failure(message: str = "", *, code: str = "x", type: str = "", said: FailureReport | None = None) -> Failure:
    return Failure(code=code, message=message, type=type, said=said)


@pytest.mark.parametrize(("message", "reason"), MESSAGES.items())
def test_a_message_is_classified_by_its_pattern(message, reason):
    found = classify(a_failure(message))
    assert found.reason == reason
    assert found.is_retriable == (RetryReason(reason) not in NOT_RETRIABLE)


@pytest.mark.parametrize("final", NON_RETRIABLE_MESSAGES)
@pytest.mark.parametrize("passing", [pattern for pattern, reason in PATTERNS.items() if reason not in NOT_RETRIABLE])
def test_a_final_pattern_wins_over_a_passing_one(final, passing):
    assert not classify(a_failure(f"{passing}: {final}")).is_retriable


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError(), "connection_error"),
        (ConnectionRefusedError(), "connection_error"),
        (ConnectionAbortedError(), "connection_error"),
        (BrokenPipeError(), "connection_error"),
        (TimeoutError(), "execution_timeout"),
        (PermissionError("connection reset"), "permission_denied"),
        (type("MineError", (ConnectionResetError,), {})(), "connection_error"),
        (ValueError("bad"), "unclassified"),
        (TypeError("bad"), "unclassified"),
        (OSError("disk"), "unclassified"),
        (Retry(), "requested"),
        (Fatal("timeout"), "fatal"),
    ],
)
def test_an_exception_is_classified_by_its_type(error, reason):
    assert classify(failure_of(error)).reason == reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("DAG_TASK_EXECUTION_TIMEOUT", "execution_timeout"),
        ("DAG_VALIDATION_BINDING_OUTPUT_KEY_MISSING", "validation"),
        ("429", "rate_limited"),
        ("LAUNCH_FAILED", "launch_failed"),
        ("effect_compensated", "fatal"),
        ("DAG_TASK_EXECUTION_EXCEPTION", "unclassified"),
        ("DAG_TASK_EXECUTION_FAILED", "unclassified"),
    ],
)
def test_a_code_is_classified(code, reason):
    assert classify(a_failure(code=code)).reason == reason


def test_every_reason_may_be_reported_as_a_code():
    for reason in RetryReason:
        assert classify(a_failure(code=reason.value)).reason == reason.value


def test_the_sources_are_asked_in_order():
    reset, rule = "connection reset", Rule(pattern="reset", retry=False, reason="mine")
    everything = a_failure(reset, code="429", type="TimeoutError", said=FailureReport.RETRY)
    assert classify(everything, [rule]).rule == "raised Retry"
    assert classify(a_failure(reset, code="429", type="TimeoutError"), [rule]).rule == "action rule 1"
    assert classify(a_failure(reset, code="429", type="TimeoutError")).rule == "exception TimeoutError"
    assert classify(a_failure(reset, code="429")).rule == "code 429"
    assert classify(a_failure(reset)).rule == 'pattern "connection reset"'


def test_the_first_matching_rule_wins():
    rules = [Rule(code="other"), Rule(pattern="ZERO", reason="first"), Rule(pattern="zero", retry=False)]
    found = classify(a_failure("division by zero"), rules)
    assert (found.is_retriable, found.reason, found.rule) == (True, "first", "action rule 2")


@pytest.mark.parametrize(
    ("rule", "is_match"),
    [
        (Rule(exception="LookupError"), True),
        (Rule(exception="Exception"), True),
        (Rule(exception="KeyError", code="E1"), True),
        (Rule(exception="KeyError", code="E2"), False),
        (Rule(exception="Error"), False),
        (Rule(pattern="missing", code="e1"), True),
        (Rule(), False),
    ],
)
def test_a_rule_matches_when_all_it_says_fits(rule, is_match):
    error = KeyError("Missing")
    error.code = "E1"
    assert rule.matches(failure_of(error)) == is_match


def test_a_rule_without_a_reason_gets_the_usual_one():
    assert classify(a_failure("odd"), [Rule(pattern="odd")]).reason == "transient_error"
    assert classify(a_failure("odd"), [Rule(pattern="odd", retry=False)]).reason == "fatal"


def test_every_passing_reason_of_the_tables_is_retriable():
    for table in (EXCEPTIONS, CODES, PATTERNS):
        assert set(table.values()) <= set(RetryReason)
    passing = {reason for pattern, reason in PATTERNS.items() if pattern not in NON_RETRIABLE_MESSAGES}
    assert not passing & NOT_RETRIABLE


@given(message=st.text(), code=st.text(), type=st.text())
def test_any_failure_is_classified_the_same_in_any_case(message, code, type):
    found = classify(a_failure(message, code=code, type=type))
    assert found.rule
    assert found.is_retriable == (RetryReason(found.reason) not in NOT_RETRIABLE)
