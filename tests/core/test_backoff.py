"""The pause before a retry stays inside its bounds, whatever the numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.backoff import backoff_seconds


def pause(retry_count: int, jitter: float, **changed: float) -> float:
    usual = {"base": 1.0, "multiplier": 2.0, "maximum": 300.0, "jitter_factor": 0.2} | changed
    return backoff_seconds(retry_count=retry_count, jitter=jitter, **usual)


@pytest.mark.parametrize(
    ("retry_count", "shortest", "longest"),
    [
        (0, 0.8, 1.2),
        (1, 1.6, 2.4),
        (2, 3.2, 4.8),
        (3, 6.4, 9.6),
        (8, 204.8, 307.2),
        (9, 240, 360),
        (50, 240, 360),
    ],
)
def test_the_default_pause_doubles_up_to_five_minutes(retry_count, shortest, longest):
    assert pause(retry_count, 0.0) == pytest.approx(shortest)
    assert pause(retry_count, 1.0) == pytest.approx(longest)


def test_without_jitter_the_pause_is_exact():
    assert [pause(n, 0.77, jitter_factor=0.0) for n in range(4)] == [1, 2, 4, 8]


def test_a_base_of_zero_never_waits():
    assert pause(10**6, 1.0, base=0.0) == 0


@given(
    retry_count=st.integers(0, 10**30),
    base=st.floats(0, 1e6),
    multiplier=st.floats(1, 1000),
    maximum=st.floats(0, 1e6),
    jitter_factor=st.floats(0, 0.99),
    jitter=st.floats(0, 1),
)
def test_any_pause_is_finite_and_within_its_bound(retry_count, base, multiplier, maximum, jitter_factor, jitter):
    seconds = pause(retry_count, jitter, base=base, multiplier=multiplier, maximum=maximum, jitter_factor=jitter_factor)
    assert math.isfinite(seconds)
    assert 0 <= seconds <= maximum * (1 + jitter_factor) * (1 + 1e-9)


@given(retry_count=st.integers(0, 2000), jitter=st.floats(0, 1))
def test_a_later_retry_never_waits_less(retry_count, jitter):
    assert pause(retry_count, jitter) <= pause(retry_count + 1, jitter)
