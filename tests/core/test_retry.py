"""The one decision after an attempt that did not complete."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.authoring.action_options import overrides_of
from holdfast.core.tasks.classify import Rule
from holdfast.core.tasks.failure import Failure, FailureReport, failure_of, input_failure
from holdfast.core.tasks.outcome import Failed, Lost, TimedOut
from holdfast.core.tasks.retry import DELAY_SECONDS_MAX, RetryAt, RetryPolicy, Stop, decide
from holdfast.core.tasks.signals import Fatal, Retry
from holdfast.errors import Invalid

RESET = Failure(code="x", message="Connection reset by peer")
BROKEN = Failure(code="x", message="division by zero")
LIMITED = Failure(code="429", message="", retry_after=timedelta(seconds=40))


def decided(outcome, *, retries=0, losses=0, jitter=0.5, **policy):
    return decide(RetryPolicy(**policy), outcome, retries=retries, losses=losses, jitter=jitter)


@pytest.mark.parametrize(
    ("outcome", "retries", "losses", "seconds", "reason"),
    [
        (Failed(RESET), 0, 0, 1, "connection_error"),
        (Failed(RESET), 2, 3, 4, "connection_error"),
        (TimedOut(Failure(code="DAG_TASK_EXECUTION_TIMEOUT", message="")), 1, 0, 2, "execution_timeout"),
        (TimedOut(Failure(code="queue_timeout", message="")), 0, 0, 1, "queue_timeout"),
        (TimedOut(Failure(code="?", message="validation took too long")), 0, 0, 1, "execution_timeout"),
        (Lost(Failure(code="?", message="permission denied")), 3, 0, 0, "lost"),
        (Lost(Failure(code="heartbeat_stale", message="")), 0, 1, 1, "heartbeat_stale"),
        (Lost(Failure(code="?", message="")), 0, 2, 2, "lost"),
        (Failed(LIMITED), 0, 0, 40, "rate_limited"),
        (Failed(failure_of(Retry(after="30s"))), 2, 0, 30, "requested"),
        (Failed(failure_of(Retry(after=0))), 2, 0, 0, "requested"),
        (Failed(failure_of(Retry())), 1, 0, 2, "requested"),
        (Failed(failure_of(Retry("mail server down"))), 1, 0, 2, "requested"),
    ],
)
def test_a_retriable_outcome_is_retried(outcome, retries, losses, seconds, reason):
    answer = decided(outcome, retries=retries, losses=losses)
    assert isinstance(answer, RetryAt)
    assert (answer.delay, answer.reason) == (timedelta(seconds=seconds), reason)


@pytest.mark.parametrize(
    ("outcome", "retries", "losses", "reason"),
    [
        (Failed(RESET), 3, 0, "retries_exhausted"),
        (Failed(RESET), 99, 0, "retries_exhausted"),
        (TimedOut(RESET), 3, 0, "retries_exhausted"),
        (Lost(RESET), 0, 3, "losses_exhausted"),
        (Failed(BROKEN), 0, 0, "unclassified"),
        (Failed(BROKEN), 3, 0, "unclassified"),
        (Failed(failure_of(Fatal("no"))), 0, 0, "fatal"),
        (Failed(failure_of(Retry())), 3, 0, "retries_exhausted"),
    ],
)
def test_an_outcome_that_is_final_or_out_of_budget_stops(outcome, retries, losses, reason):
    answer = decided(outcome, retries=retries, losses=losses)
    assert isinstance(answer, Stop)
    assert answer.reason == reason


@pytest.mark.parametrize("outcome", [Failed(RESET), TimedOut(RESET), Lost(RESET)])
def test_a_disabled_policy_stops_everything(outcome):
    assert decided(outcome, is_enabled=False).reason == "retry_disabled"


@pytest.mark.parametrize("kind", [Failed, TimedOut, Lost])
def test_an_action_rule_can_forbid_what_is_usually_retried(kind):
    answer = decided(kind(RESET), rules=(Rule(pattern="RESET", retry=False, reason="half_written"),))
    assert isinstance(answer, Stop)
    assert (answer.reason, answer.rule) == ("half_written", "action rule 1")


@pytest.mark.parametrize(
    ("outcome", "spent", "sentence"),
    [
        (Failed(RESET), 1, 'Retry 2 of 3 in 2.0 s: connection_error (pattern "connection reset").'),
        (Failed(RESET), 3, "Stopped: 3 of 3 retries spent; the last failure was connection_error."),
        (
            Failed(BROKEN),
            0,
            "Stopped: unclassified, not retried (no rule, exception, code or pattern matched); add a rule to "
            "the action to retry it.",
        ),
        (Lost(RESET), 0, "Retry 1 of 3 after a loss at once: lost (outcome lost)."),
        (Lost(RESET), 3, "Stopped: 3 of 3 retries after a loss spent; the last failure was lost."),
    ],
)
def test_a_decision_explains_itself(outcome, spent, sentence):
    assert decided(outcome, retries=spent, losses=spent).sentence == sentence


def test_a_policy_without_retries_says_so():
    answer = decided(Failed(RESET), max_retries=0)
    assert answer.sentence == "Stopped: no retries allowed; the last failure was connection_error."


@given(jitter=st.floats(0, 1), asked=st.floats(0, 10**8))
def test_jitter_never_undercuts_a_delay_that_was_asked_for(jitter, asked):
    failure = Failure(code="429", message="", retry_after=timedelta(seconds=asked))
    delay = decided(Failed(failure), jitter=jitter).delay
    assert delay >= timedelta(seconds=min(asked, DELAY_SECONDS_MAX))


def test_a_delay_asked_for_is_at_most_thirty_days():
    assert decided(Failed(failure_of(Retry(after="90d")))).delay == timedelta(days=30)


@given(
    outcomes=st.lists(st.sampled_from([Failed, TimedOut, Lost]), max_size=60),
    max_retries=st.integers(0, 10),
    max_losses=st.integers(0, 10),
    said=st.sampled_from([None, FailureReport.RETRY]),
    jitter=st.floats(0, 1),
)
def test_no_sequence_of_outcomes_exceeds_the_budgets(outcomes, max_retries, max_losses, said, jitter):
    failure = Failure(code="transient_error", message="", said=said)
    spent = {"retries": 0, "losses": 0}
    attempts = 1
    for kind in outcomes:
        answer = decided(kind(failure), jitter=jitter, max_retries=max_retries, max_losses=max_losses, **spent)
        if isinstance(answer, Stop):
            assert spent["losses"] == max_losses if kind is Lost else spent["retries"] == max_retries
            break
        spent["losses" if kind is Lost else "retries"] += 1
        attempts += 1
    assert spent["retries"] <= max_retries
    assert spent["losses"] <= max_losses
    assert attempts <= 1 + max_retries + max_losses


@pytest.mark.parametrize(
    ("retry", "after", "text"),
    [
        (Retry("mail server down"), None, "mail server down"),
        (Retry("30s", "later"), timedelta(seconds=30), "later"),
        (Retry("not now", "but later"), None, "not now but later"),
    ],
)
def test_a_retry_takes_text_that_is_no_duration_as_its_message(retry, after, text):
    assert (retry.after, str(retry)) == (after, text)


def test_a_retry_refuses_a_number_that_is_no_duration():
    with pytest.raises(Invalid):
        Retry(-1)


class StockLocked(Exception): ...


@pytest.mark.parametrize("given", [StockLocked, (StockLocked,), "StockLocked", [Exception], "Exception"])
def test_retry_on_retries_an_unclassified_exception(given):
    policy = replace(RetryPolicy(), **overrides_of({"retry_on": given}))
    outcome = Failed(failure_of(StockLocked("shelf 7")))
    assert isinstance(decide(RetryPolicy(), outcome, retries=0, losses=0, jitter=0), Stop)
    decision = decide(policy, outcome, retries=0, losses=0, jitter=0)
    assert isinstance(decision, RetryAt) and "retry_on" in decision.rule


def test_rules_come_before_retry_on_and_what_the_code_said_before_both():
    rules = [Rule(exception=StockLocked, retry=False, reason="gone")]
    policy = replace(RetryPolicy(), **overrides_of({"retry_on": Exception, "rules": rules}))
    for error, reason in ((StockLocked("x"), "gone"), (Fatal("x"), "fatal")):
        decision = decide(policy, Failed(failure_of(error)), retries=0, losses=0, jitter=0)
        assert isinstance(decision, Stop) and decision.reason == reason


def test_an_input_that_does_not_fit_is_not_retried_whatever_retry_on_says():
    policy = replace(RetryPolicy(), **overrides_of({"retry_on": Exception}))
    failure = input_failure("shop.charge", ValueError("n is not a number"))
    assert isinstance(decide(policy, Failed(failure), retries=0, losses=0, jitter=0), Stop)


def test_the_policy_may_retry_what_is_unclassified_and_nothing_else_that_is_final():
    policy = replace(RetryPolicy(), retry_unclassified=True)
    decision = decide(policy, Failed(failure_of(StockLocked("x"))), retries=0, losses=0, jitter=0)
    assert isinstance(decision, RetryAt) and decision.reason == "unclassified"
    assert isinstance(decide(policy, Failed(failure_of(PermissionError("x"))), retries=0, losses=0, jitter=0), Stop)


def test_the_sentence_of_an_unclassified_failure_names_the_option_that_retries_it():
    decision = decide(RetryPolicy(), Failed(failure_of(StockLocked("x"))), retries=0, losses=0, jitter=0)
    assert "unclassified, not retried" in decision.sentence and "retry_on=(StockLocked,)" in decision.sentence


@pytest.mark.parametrize("given", [int, 3, "", (ValueError, None)])
def test_retry_on_refuses_what_is_no_exception(given):
    with pytest.raises(Invalid) as caught:
        overrides_of({"retry_on": given})
    assert caught.value.code == "invalid_policy" and "retry_on" in caught.value.detail
