"""The quota's rule: never more retries in a window than allowed, and nobody held back for ever."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.limits.quota import WINDOWS_AHEAD_MAX, Meter, Quota, admit
from holdfast.core.limits.window import SLICES, Slice, Window
from holdfast.errors import Invalid

LANE = 7


def meter(quota: Quota, slices=(), at=0.0, lanes=(LANE,), quota_id=1, booked=0.0) -> Meter:
    window = Window(seconds=quota.window_seconds, at=at, slices=slices)
    return Meter(quota_id=quota_id, quota=quota, window=window, lanes=frozenset(lanes), booked_seconds=booked)


@pytest.mark.parametrize(
    ("quota", "first_attempts", "allowed"),
    [
        (Quota(retries=100), 0, 100),
        (Quota(share=0.2), 100, 20),
        (Quota(share=0.2), 4, 1),
        (Quota(share=0.2), 0, 1),
        (Quota(share=0.1), 30, 3),
        (Quota(retries=5, share=0.2), 100, 5),
        (Quota(retries=50, share=0.2), 100, 20),
        (Quota(), 100, 20),
    ],
)
def test_the_allowance_is_the_smaller_of_count_and_share_and_never_nothing(quota, first_attempts, allowed):
    assert quota.allowance(first_attempts) == allowed


@settings(max_examples=200)
@given(
    retries=st.integers(1, 8),
    window_seconds=st.sampled_from([1.0, 60.0, 90.0]),
    arrivals=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 6)), min_size=1, max_size=40),
)
def test_no_window_ever_holds_more_than_its_retries(retries, window_seconds, arrivals):
    """A model of the database: whoever is held back comes again when told; every stretch of a window is counted."""
    quota = Quota(retries=retries, window_seconds=window_seconds)
    width = window_seconds / SLICES
    slices: dict[int, int] = {}
    waiting: list[tuple[float, int]] = []
    gone: list[float] = []
    now, number = 0.0, 0
    for pause, count in arrivals:
        now += pause
        waiting += [(now, number + index) for index in range(count)]
        number += count
        for _ in range(3):
            due = sorted(one for one in waiting if one[0] <= now)
            found = [Slice(slice_number, 0, part) for slice_number, part in slices.items()]
            answer = admit([(task, LANE) for _, task in due], [meter(quota, found, at=now)])
            slot = math.floor(now / width)
            slices[slot] = slices.get(slot, 0) + len(answer.admitted)
            gone += [now] * len(answer.admitted)
            waiting = [one for one in waiting if one[0] > now]
            waiting += [(now + seconds, task) for task, seconds in answer.held.items()]
            now += width / 2
    for start in gone:
        assert sum(start <= moment < start + window_seconds for moment in gone) <= retries
    assert len(gone) + len(waiting) == number


@given(count=st.integers(1, 500), retries=st.integers(1, 50), booked=st.floats(0, 10_000))
def test_everybody_held_back_is_told_a_time_within_bounds(count, retries, booked):
    quota = Quota(retries=retries)
    full = meter(quota, [Slice(0, 0, retries)], at=1.0, booked=booked)
    answer = admit([(task, LANE) for task in range(count)], [full])
    assert not answer.admitted and len(answer.held) == count
    latest = WINDOWS_AHEAD_MAX * quota.window_seconds
    assert all(full.next_slot_seconds <= seconds <= latest for seconds in answer.held.values())


def test_those_held_back_are_spread_at_the_pace_of_the_quota():
    full = meter(Quota(retries=60), [Slice(0, 0, 60)], at=1.0)
    times = list(admit([(task, LANE) for task in range(120)], [full]).held.values())
    steps = {round(later - earlier, 6) for earlier, later in pairwise(times)}
    assert steps == {1.0}


def test_the_first_due_go_first():
    answer = admit([(5, LANE), (3, LANE), (9, LANE)], [meter(Quota(retries=2))])
    assert (answer.admitted, list(answer.held), answer.spent) == ([5, 3], [9], {1: 2})


def test_a_lane_without_room_does_not_hold_back_another():
    meters = [meter(Quota(retries=1), lanes=(1,), quota_id=1), meter(Quota(retries=5), lanes=(1, 2), quota_id=2)]
    answer = admit([(10, 1), (11, 1), (20, 2), (21, 2)], meters)
    assert (answer.admitted, list(answer.held), answer.spent) == ([10, 20, 21], [11], {1: 1, 2: 3})


def test_a_window_forgets_slices_that_are_over():
    counted = Window(seconds=60.0, at=120.0, slices=[Slice(11, 5, 5), Slice(12, 3, 2), Slice(24, 1, 1)])
    assert (counted.whole, counted.part) == (4, 3)


@given(parts=st.lists(st.integers(0, 5), min_size=1, max_size=13), limit=st.integers(1, 20))
def test_the_next_slot_is_when_there_is_room_and_no_sooner(parts, limit):
    slices = [Slice(number, 0, part) for number, part in enumerate(parts)]
    now = Window(seconds=60.0, at=60.0, slices=slices)
    later = now.at + now.seconds_until_below(limit)
    assert Window(seconds=60.0, at=later, slices=slices).part < limit
    if later > now.at:
        assert Window(seconds=60.0, at=later - 0.01, slices=slices).part >= limit


@pytest.mark.parametrize(
    ("quota", "text"),
    [
        (Quota(retries=100), "100 per minute"),
        (Quota(share=0.2), "20 % of first attempts per minute"),
        (Quota(retries=5, share=0.1, window_seconds="1h"), "5 per hour, at most 10 % of first attempts per hour"),
        (Quota(retries=5, window_seconds=90), "5 per 1m 30s"),
    ],
)
def test_a_quota_reads_like_a_sentence(quota, text):
    assert str(quota) == text


@pytest.mark.parametrize(
    ("given_", "expected"),
    [(None, None), (False, None), (True, Quota(share=0.2)), ({"retries": 3}, Quota(retries=3)), (Quota(), Quota())],
)
def test_a_declaration_is_read(given_, expected):
    assert Quota.of(given_) == expected


@pytest.mark.parametrize(
    "wrong", [{"retries": 0}, {"retries": 1.5}, {"share": 2}, {"window_seconds": "0s"}, {"per": "1m"}, "yes"]
)
def test_a_wrong_declaration_is_refused(wrong):
    with pytest.raises(Invalid):
        Quota.of(wrong)
