"""Every outcome leaves its attempt in exactly one state."""

from __future__ import annotations

from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Released, TimedOut, attempt_state
from holdfast.core.tasks.states import ATTEMPT_CODES, AttemptState

FAILURE = Failure(code="x", message="y")
OUTCOMES = [Completed(b"1"), Failed(FAILURE), TimedOut(FAILURE), Lost(FAILURE), Canceled(), Released()]


def test_each_outcome_has_its_own_final_state():
    states = [attempt_state(outcome) for outcome in OUTCOMES]
    assert set(states) == set(AttemptState) - {AttemptState.RUNNING}
    assert all(state in ATTEMPT_CODES for state in states)
