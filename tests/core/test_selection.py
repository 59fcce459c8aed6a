"""Planning what to claim: priority first, fair between lanes, nobody starved."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.selection import Head, Take, plan


def head(lane_id: int, priority: int = 5, task_id: int = 0) -> Head:
    return Head(lane_id=lane_id, priority=priority, task_id=task_id or lane_id)


def counted(heads: list[Head], want: int, turns: int) -> Counter[tuple[int, int]]:
    total: Counter[tuple[int, int]] = Counter()
    for turn in range(turns):
        for take in plan(heads, want, turn=turn):
            total[take.lane_id, take.priority] += take.count
    return total


HEADS = st.lists(
    st.builds(head, st.integers(1, 12), st.integers(0, 9), st.integers(1, 10**12)),
    min_size=1,
    max_size=40,
    unique_by=lambda one: (one.lane_id, one.priority),
)


def test_nothing_queued_or_nothing_wanted_plans_nothing():
    assert plan([], 10, turn=0) == []
    assert plan([head(1)], 0, turn=0) == []


def test_a_single_head_gets_every_slot():
    only = Head(lane_id=4, priority=2, task_id=77)
    assert plan([only], 100, turn=3) == [Take(lane_id=4, priority=2, floor=77, count=100)]


def test_the_better_priority_gets_seven_of_eight_slots_and_the_oldest_head_the_eighth():
    urgent, old = head(1, priority=0, task_id=900), head(2, priority=9, task_id=1)
    assert [(take.lane_id, take.count) for take in plan([old, urgent], 80, turn=0)] == [(1, 70), (2, 10)]


@pytest.mark.parametrize("want", [1, 3, 7, 8, 9, 100])
def test_whatever_the_size_of_a_plan_one_slot_of_eight_goes_to_the_oldest(want):
    total = counted([head(1, priority=0, task_id=900), head(2, priority=9, task_id=1)], want, turns=800)
    assert total[2, 9] == 800 * want / 8


def test_with_one_slot_at_a_time_the_oldest_waits_at_most_eight_turns():
    heads = [head(1, priority=0, task_id=900), head(2, priority=9, task_id=1)]
    assert [plan(heads, 1, turn=turn)[0].lane_id for turn in range(16)] == [1, 1, 1, 1, 1, 1, 1, 2] * 2


@pytest.mark.parametrize("lanes", [2, 3, 7, 8, 14])
@pytest.mark.parametrize("want", [1, 2, 5, 8, 100])
def test_lanes_of_one_priority_share_the_slots_evenly(lanes, want):
    oldest_elsewhere = head(99, priority=9, task_id=1)
    heads = [head(lane, task_id=1000 + lane) for lane in range(1, lanes + 1)]
    total = counted([*heads, oldest_elsewhere], want, turns=lanes * 8)
    shares = {total[lane, 5] for lane in range(1, lanes + 1)}
    assert max(shares) - min(shares) <= 1


def test_the_first_lane_changes_with_the_turn():
    heads = [head(lane) for lane in (1, 2, 3)]
    assert {plan(heads, 1, turn=turn)[0].lane_id for turn in range(3)} == {1, 2, 3}


@given(heads=HEADS, want=st.integers(1, 500), turn=st.integers(0, 10**9))
def test_a_plan_uses_every_slot_once_and_names_each_lane_and_priority_once(heads, want, turn):
    takes = plan(heads, want, turn=turn)
    assert sum(take.count for take in takes) == want
    assert all(take.count > 0 for take in takes)
    assert len({(take.lane_id, take.priority) for take in takes}) == len(takes)
    assert {(take.lane_id, take.priority, take.floor) for take in takes} <= {
        (one.lane_id, one.priority, one.task_id) for one in heads
    }


@given(heads=HEADS, want=st.integers(1, 500), turn=st.integers(0, 10**9))
def test_a_plan_depends_on_its_arguments_only(heads, want, turn):
    assert plan(heads, want, turn=turn) == plan(list(reversed(heads)), want, turn=turn)


@given(heads=HEADS, want=st.integers(1, 500), turn=st.integers(0, 10**9))
def test_only_the_best_priority_and_the_oldest_head_are_taken(heads, want, turn):
    best = min(one.priority for one in heads)
    oldest = min(one.task_id for one in heads)
    assert all(take.priority == best or take.floor == oldest for take in plan(heads, want, turn=turn))
