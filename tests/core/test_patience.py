"""Patience runs out, comes back with time, and is kept for each address apart."""

from __future__ import annotations

from holdfast.core.limits.token_bucket import TokenBucket


def test_a_few_at_once_then_a_wait_that_says_how_long():
    patience = TokenBucket(burst=3, per_second=0.5)
    assert [patience.spend("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]
    assert patience.spend("a", 1.0) == 1.0
    assert patience.spend("a", 2.0) == 0.0
    assert patience.spend("a", 2.0) > 0


def test_what_was_right_costs_nothing():
    patience = TokenBucket(burst=2, per_second=0.001)
    for _ in range(50):
        assert patience.spend("a", 0.0) == 0.0
        patience.refund("a", 0.0)
    assert len(patience) == 0


def test_another_address_is_not_made_to_wait():
    patience = TokenBucket(burst=1, per_second=0.001)
    assert (patience.spend("a", 0.0), patience.spend("b", 0.0)) == (0.0, 0.0)
    assert patience.spend("a", 0.0) > 0


def test_time_fills_it_up_and_never_beyond():
    patience = TokenBucket(burst=2, per_second=1.0)
    patience.spend("a", 0.0)
    assert [patience.spend("a", 1e6) == 0.0 for _ in range(3)] == [True, True, False]


def test_a_clock_that_steps_back_gives_nothing():
    patience = TokenBucket(burst=1, per_second=1.0)
    patience.spend("a", 100.0)
    assert patience.spend("a", 50.0) > 0


def test_it_remembers_a_bounded_number_of_addresses():
    patience = TokenBucket(burst=1, per_second=0.001, addresses_max=100)
    for number in range(1_000):
        patience.spend(str(number), 0.0)
    assert len(patience) == 100
    assert patience.spend("999", 0.0) > 0
