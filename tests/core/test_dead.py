"""Letters move as the table says, and the sweep judges in the order specified (S2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.dead_letters.dead_letter import (
    DISPATCHES_MAX,
    RECOVERABLE,
    TRANSITIONS,
    DeadLetterEvidence,
    DeadLetterState,
    OwningRun,
    SweepDecision,
    dispatch_backoff_seconds,
    is_retry_ceiling_reached,
    judge,
    owner_state_of,
    valid_dispatches,
)
from holdfast.errors import Invalid

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
SPECIFIED = {
    "open": {"retry_requested", "ignored", "resolved"},
    "retry_requested": {"retrying", "ignored", "resolved"},
    "retrying": {"retrying", "ignored", "resolved"},
    "ignored": {"retry_requested", "resolved"},
    "resolved": set(),
}


def facts(**changes):
    usual = {
        "state": DeadLetterState.RETRY_REQUESTED,
        "tenant_id": 1,
        "owner_id": 1,
        "stand": OwningRun.FAILED,
        "is_superseded": False,
        "dispatches": 0,
        "dispatched_at": None,
    }
    return DeadLetterEvidence(**(usual | changes))


def test_a_letter_moves_exactly_as_specified():
    assert {state.value: {to.value for to in targets} for state, targets in TRANSITIONS.items()} == SPECIFIED


@pytest.mark.parametrize("state", DeadLetterState)
def test_s2_only_letters_that_somebody_asked_to_retry_are_candidates(state):
    is_candidate = state in (DeadLetterState.RETRY_REQUESTED, DeadLetterState.RETRYING)
    assert (judge(facts(state=state), at=AT) is SweepDecision.REDRIVE) == is_candidate


def test_s2_a_letter_without_the_retry_option_is_left():
    assert judge(facts(can_retry=False), at=AT) is SweepDecision.LEAVE


ORDER = [
    ("the run is gone", {"stand": OwningRun.GONE, "owner_id": None}, SweepDecision.LEAVE),
    ("another tenant's", {"owner_id": 2}, SweepDecision.LEAVE),
    ("superseded", {"is_superseded": True}, SweepDecision.RESOLVE),
    ("exhausted", {"dispatches": DISPATCHES_MAX}, SweepDecision.EXHAUST),
    ("active", {"stand": OwningRun.ACTIVE}, SweepDecision.LEAVE),
    ("inside its backoff", {"dispatched_at": AT}, SweepDecision.LEAVE),
    ("due", {}, SweepDecision.REDRIVE),
]


@pytest.mark.parametrize("first", range(len(ORDER)), ids=lambda n: ORDER[n][0])
def test_s2_the_first_branch_that_applies_counts(first):
    """Each branch wins over all that come after it, whatever they would have said."""
    changes: dict[str, object] = {}
    for _, change, _ in reversed(ORDER[first:]):
        changes |= change
    assert judge(facts(**changes), at=AT) is ORDER[first][2]


@pytest.mark.parametrize("stand", OwningRun)
def test_s2_only_a_failed_or_blocked_run_is_requeued(stand):
    assert (judge(facts(stand=stand), at=AT) is SweepDecision.REDRIVE) == (stand in RECOVERABLE)


def test_s2_dispatch_backoff_is_one_second_doubled_up_to_three_hundred():
    assert [dispatch_backoff_seconds(n) for n in (0, 1, 2, 3, 8, 9, 20, 1000)] == [1, 2, 4, 8, 256, 300, 300, 300]


@pytest.mark.parametrize("dispatches", range(1, DISPATCHES_MAX))
def test_s2_a_letter_is_due_exactly_when_its_backoff_is_over(dispatches):
    backoff = timedelta(seconds=2**dispatches)
    letter = facts(state=DeadLetterState.RETRYING, dispatches=dispatches, dispatched_at=AT)
    early, due = AT + backoff - timedelta(seconds=0.001), AT + backoff
    assert (judge(letter, at=early), judge(letter, at=due)) == (SweepDecision.LEAVE, SweepDecision.REDRIVE)


def test_s0_retryable_means_attempts_within_the_budget():
    """S0: retryable = failed and attempt <= MAX_RETRIES; the first attempt spends no retry."""
    spent = [is_retry_ceiling_reached(retries=attempt - 1, losses=0, max_retries=2) for attempt in (1, 2, 3)]
    assert spent == [False, False, True]


def test_the_ceiling_counts_lost_attempts_too():
    assert is_retry_ceiling_reached(retries=1, losses=2, max_retries=3)
    assert not is_retry_ceiling_reached(retries=1, losses=1, max_retries=3)


@pytest.mark.parametrize(("dispatches", "verdict"), [(1, SweepDecision.REDRIVE), (2, SweepDecision.EXHAUST)])
def test_a_letter_is_parked_after_as_many_dispatches_as_were_asked_for(dispatches, verdict):
    letter = facts(state=DeadLetterState.RETRYING, dispatches=dispatches, dispatches_max=2, dispatched_at=AT)
    assert judge(letter, at=AT + timedelta(days=1)) is verdict


@pytest.mark.parametrize("given", [0, 6, True, 1.5, "2"])
def test_the_number_of_dispatches_has_bounds(given):
    assert valid_dispatches(1) == 1 and valid_dispatches(5) == 5
    with pytest.raises(Invalid, match="from 1 to 5"):
        valid_dispatches(given)


@pytest.mark.parametrize(
    ("row", "stand"),
    [
        ({"state": "o"}, OwningRun.ACTIVE),
        ({"state": "o", "failed": 1}, OwningRun.BLOCKED),
        ({"state": "o", "failed": 1, "is_paused": True}, OwningRun.PAUSED),
        ({"state": "o", "failed": 1, "is_canceled": True}, OwningRun.CANCELED),
        ({"state": "f", "failed": 1}, OwningRun.FAILED),
        ({"state": "c"}, OwningRun.COMPLETED),
        ({"state": "x", "is_canceled": True}, OwningRun.CANCELED),
    ],
)
def test_where_a_run_stands(row, stand):
    usual = {"failed": 0, "is_paused": False, "is_canceled": False}
    assert owner_state_of(**(usual | row)) is stand
