"""The breaker's rule: what opens it, how many are tried, and what closes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.limits.breaker import (
    CIRCUIT_CODES,
    CIRCUIT_TRANSITIONS,
    Breaker,
    CircuitState,
    after_trials,
    trial_room,
    trips,
)
from holdfast.core.limits.window import Slice, Window
from holdfast.errors import Invalid

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


def window(attempts: int, failures: int) -> Window:
    return Window(seconds=60.0, at=0.0, slices=[Slice(0, attempts, failures)])


@pytest.mark.parametrize(
    ("attempts", "failures", "is_open"),
    [(19, 19, False), (20, 9, False), (20, 10, True), (20, 20, True), (1000, 499, False), (1000, 500, True)],
)
def test_half_of_twenty_attempts_in_a_minute_open_it(attempts, failures, is_open):
    assert trips(Breaker(), window(attempts, failures)) == is_open


def test_the_defaults_are_those_of_the_specification():
    breaker = Breaker()
    assert (breaker.share, breaker.attempts_min, breaker.window_seconds) == (0.5, 20, 60.0)
    assert (breaker.open_seconds, breaker.trials) == (30.0, 3)


@given(
    trials=st.integers(1, 5),
    steps=st.lists(st.sampled_from(["start", "pass", "fail", "lose"]), max_size=60),
)
def test_no_history_starts_more_trials_than_granted_and_one_failure_opens_it(trials, steps):
    breaker, state, passed, running = Breaker(trials=trials), HALF_OPEN, 0, 0
    for step in steps:
        if state is not HALF_OPEN:
            break
        if step == "start":
            running += trial_room(breaker, passed=passed, running=running) > 0
        elif running:
            running -= 1
            passed += step == "pass"
            if step != "lose":
                state = after_trials(breaker, passed=passed, failed=int(step == "fail"))
        assert passed + running <= trials
        assert (state is CLOSED) <= (passed == trials)
        assert (state is OPEN) <= (step == "fail")
    assert state is HALF_OPEN or state in CIRCUIT_TRANSITIONS[HALF_OPEN]


@given(attempts=st.integers(0, 500), failures=st.integers(0, 500), share=st.floats(0.01, 1), least=st.integers(1, 100))
def test_it_never_opens_on_too_few_attempts_or_too_small_a_share(attempts, failures, share, least):
    failures = min(failures, attempts)
    breaker = Breaker(share=share, attempts_min=least)
    if trips(breaker, window(attempts, failures)):
        assert attempts >= least and failures > 0 and failures / attempts >= share - 1e-9
    else:
        assert attempts < least or failures < share * attempts


def test_every_state_has_a_code_and_its_ways_out():
    assert set(CIRCUIT_CODES) == set(CIRCUIT_TRANSITIONS) == set(CircuitState)
    assert all(state not in ways for state, ways in CIRCUIT_TRANSITIONS.items())


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, None),
        (False, None),
        (True, Breaker()),
        ({"trials": 1, "window_seconds": "2m"}, Breaker(trials=1, window_seconds=120.0)),
        ({"share": "80%"}, Breaker(share=0.8)),
        (Breaker(trials=9), Breaker(trials=9)),
    ],
)
def test_a_declaration_is_read(given_, expected):
    assert Breaker.of(given_) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0},
        {"share": 1.5},
        {"share": "many%"},
        {"attempts_min": 0},
        {"attempts_min": 2.5},
        {"trials": True},
        {"window_seconds": 0},
        {"open_seconds": "3w"},
        {"colour": "red"},
        "yes",
        7,
    ],
)
def test_a_wrong_declaration_is_refused(wrong):
    with pytest.raises(Invalid) as refused:
        Breaker.of(wrong)
    assert refused.value.code in ("invalid_guard", "invalid_duration")


def test_a_half_open_breaker_always_has_a_way_to_close():
    """One that a deploy left with as many passed as it wants has one trial more; not a second beside it."""
    breaker = Breaker(trials=2)
    assert [trial_room(breaker, passed=passed, running=0) for passed in range(4)] == [2, 1, 1, 1]
    assert trial_room(breaker, passed=2, running=1) == 0
