"""Planning what to claim: priority first, fair between lanes, nobody starved."""

from __future__ import annotations

from collections import Counter
from itertools import count, cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.selection import AGED_SLOT_EVERY, LaneHead, Row, Take, plan, plan_within, short_of

NODES_FROM = 10**12
"""Ids of nodes are larger than those of the plain tasks of their day, whichever is older."""


def head(lane_id: int, priority: int = 5, task_id: int = 0) -> LaneHead:
    return LaneHead(lane_id=lane_id, priority=priority, task_id=task_id or lane_id)


def node(lane_id: int, priority: int = 5, task_id: int = 0) -> LaneHead:
    return LaneHead(lane_id=lane_id, priority=priority, task_id=NODES_FROM + (task_id or lane_id), is_node=True)


def unseen(lane_id: int, priority: int = 5) -> LaneHead:
    return LaneHead(lane_id=lane_id, priority=priority, task_id=0)


def counted(heads: list[LaneHead], want: int, plans: int) -> Counter[Row]:
    total: Counter[Row] = Counter()
    for number in range(plans):
        for take in plan(heads, want, slot=number * want):
            total[take.row] += take.count
    return total


ANY_HEAD = st.builds(
    lambda make, *where: make(*where),
    st.sampled_from([head, node]),
    st.integers(1, 12),
    st.integers(0, 9),
    st.integers(1, 10**11),
)
HEADS = st.lists(ANY_HEAD, min_size=1, max_size=40, unique_by=lambda one: one.row)
SLOT = st.integers(0, 10**9)
WANT = st.integers(1, 500)


def test_nothing_queued_or_nothing_wanted_plans_nothing():
    assert plan([], 10, slot=0) == plan_within([], 10, slot=0, gates={}, rooms={}) == []
    assert plan([head(1)], 0, slot=0) == plan_within([head(1)], 0, slot=0, gates={}, rooms={}) == []


def test_a_single_head_gets_every_slot():
    only = LaneHead(lane_id=4, priority=2, task_id=77)
    assert plan([only], 100, slot=3) == [Take(lane_id=4, priority=2, floor=77, count=100)]


def test_the_better_priority_gets_seven_of_eight_slots_and_the_oldest_head_the_eighth():
    urgent, old = head(1, priority=0, task_id=900), head(2, priority=9, task_id=1)
    assert [(take.lane_id, take.count) for take in plan([old, urgent], 80, slot=0)] == [(1, 70), (2, 10)]


@pytest.mark.parametrize("want", [1, 3, 7, 8, 9, 100])
def test_whatever_the_size_of_a_plan_one_slot_of_eight_goes_to_the_oldest(want):
    total = counted([head(1, priority=0, task_id=900), head(2, priority=9, task_id=1)], want, plans=800)
    assert total[2, 9, False] == 800 * want / 8


def test_with_one_slot_at_a_time_the_oldest_waits_at_most_eight_slots():
    heads = [head(1, priority=0, task_id=900), head(2, priority=9, task_id=1)]
    assert [plan(heads, 1, slot=slot)[0].lane_id for slot in range(16)] == [1, 1, 1, 1, 1, 1, 1, 2] * 2


def test_the_oldest_plain_task_and_the_oldest_node_take_turns_at_the_eighth_slot():
    heads = [head(1, priority=0, task_id=900), head(2, priority=9, task_id=1), node(3, priority=9)]
    assert [plan(heads, 1, slot=slot)[0].lane_id for slot in range(7, 40, 8)] == [2, 3, 2, 3, 2]


def test_a_node_behind_a_flood_of_plain_tasks_gets_every_sixteenth_slot():
    """The flood is older, as far as ids tell; they tell nothing of nodes."""
    total = counted([head(1, priority=0), node(2, priority=9)], 1, plans=160)
    assert total == {(1, 0, False): 150, (2, 9, True): 10}


def test_an_aged_slot_goes_to_nobody_unseen_unless_nobody_was_seen():
    heads = [head(1, priority=0, task_id=900), unseen(2, priority=9)]
    assert {plan(heads, 1, slot=slot)[0].lane_id for slot in range(64)} == {1}
    heads = [unseen(1, priority=0), unseen(2, priority=9)]
    assert sum(take.count for take in plan(heads, 16, slot=0)) == 16


@pytest.mark.parametrize("lanes", [2, 3, 7, 8, 14])
@pytest.mark.parametrize("want", [1, 2, 5, 8, 100])
def test_lanes_of_one_priority_share_the_slots_evenly(lanes, want):
    oldest_elsewhere = head(99, priority=9, task_id=1)
    heads = [head(lane, task_id=1000 + lane) for lane in range(1, lanes + 1)]
    total = counted([*heads, oldest_elsewhere], want, plans=lanes * 8)
    shares = {total[lane, 5, False] for lane in range(1, lanes + 1)}
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("want", [1, 2, 5, 8, 100])
def test_a_lane_with_plain_tasks_and_nodes_has_no_more_slots_than_others_and_shares_them_evenly(want):
    oldest = [head(99, priority=9, task_id=1), node(99, priority=9, task_id=1)]
    heads = [head(1, task_id=1000), node(1, task_id=1000), head(2, task_id=1000), node(3, task_id=1000)]
    total = counted([*oldest, *heads], want, plans=3 * 2 * 8)
    shares = [total[1, 5, False] + total[1, 5, True], total[2, 5, False], total[3, 5, True]]
    assert max(shares) - min(shares) <= 1
    assert abs(total[1, 5, False] - total[1, 5, True]) <= 1


def test_the_first_lane_changes_with_the_slot():
    heads = [head(lane) for lane in (1, 2, 3)]
    assert {plan(heads, 1, slot=slot)[0].lane_id for slot in range(3)} == {1, 2, 3}


@given(heads=HEADS, want=WANT, slot=SLOT)
def test_a_plan_uses_every_slot_once_and_names_each_head_once(heads, want, slot):
    takes = plan(heads, want, slot=slot)
    assert sum(take.count for take in takes) == want
    assert all(take.count > 0 for take in takes)
    assert len({take.row for take in takes}) == len(takes)
    assert {(take.row, take.floor) for take in takes} <= {(one.row, one.task_id) for one in heads}


@given(heads=HEADS, want=WANT, slot=SLOT)
def test_a_plan_depends_on_its_arguments_only(heads, want, slot):
    assert plan(heads, want, slot=slot) == plan(list(reversed(heads)), want, slot=slot)


@given(heads=HEADS, want=st.integers(1, 60), slot=SLOT)
def test_a_large_plan_is_the_sum_of_small_ones(heads, want, slot):
    total: Counter[Row] = Counter()
    for number in range(slot, slot + want):
        total.update(take.row for take in plan(heads, 1, slot=number))
    assert total == {take.row: take.count for take in plan(heads, want, slot=slot)}


@given(heads=HEADS, want=WANT, slot=SLOT)
def test_only_the_best_priority_and_the_two_oldest_heads_are_taken(heads, want, slot):
    best = min(one.priority for one in heads)
    oldest = {min((one.task_id for one in heads if one.is_node is kind), default=0) for kind in (False, True)}
    assert all(take.priority == best or take.floor in oldest for take in plan(heads, want, slot=slot))


@given(heads=HEADS, slot=SLOT)
def test_no_head_of_the_best_priority_waits_longer_than_two_rounds(heads, slot):
    best = min(one.priority for one in heads)
    rows = {one.row for one in heads if one.priority == best}
    lanes = len({row[0] for row in rows})
    enough = 2 * lanes * AGED_SLOT_EVERY // (AGED_SLOT_EVERY - 1) + 1
    assert rows <= {take.row for take in plan(heads, enough, slot=slot)}


@given(
    floods=st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 9), st.booleans()), min_size=1, max_size=6, unique=True
    ),
    is_node=st.booleans(),
    wants=st.lists(st.integers(1, 20), min_size=1, max_size=10),
    slot=SLOT,
)
def test_nothing_starves_behind_floods_that_never_end(floods, is_node, wants, slot):
    """Whatever is always there at whatever priorities: a task is taken when those before it and of its kind are."""
    ids = {False: count(1), True: count(NODES_FROM)}
    queued = {row: [next(ids[row[2]])] for row in floods}
    last = (5, 9, is_node)
    queued[last] = [next(ids[is_node])]
    older = sum(1 for row in floods if row[2] is is_node)
    waited = 0
    for want in cycle(wants):
        heads = [LaneHead(lane_id=r[0], priority=r[1], task_id=q[0], is_node=r[2]) for r, q in queued.items()]
        takes = plan(heads, want, slot=slot)
        if any(take.row == last for take in takes):
            break
        for row in {take.row for take in takes}:
            queued[row] = [next(ids[row[2]])]
        slot, waited = slot + want, waited + want
        # All aged slots that one plan has for a kind are its oldest head's: the next one's are in another plan.
        assert waited <= (2 * AGED_SLOT_EVERY + max(wants)) * (older + 1)


GATES = {1: [("queue", 1)], 2: [("queue", 1), ("tenant", 7)]}


@given(heads=HEADS, want=st.integers(1, 60), slot=SLOT)
def test_a_plan_within_plenty_of_room_is_the_same(heads, want, slot):
    rooms = {("queue", 1): 1000, ("tenant", 7): 1000}
    within = plan_within(heads, want, slot=slot, gates=GATES, rooms=rooms)
    assert {take.row: take for take in within} == {take.row: take for take in plan(heads, want, slot=slot)}


@given(heads=HEADS, want=st.integers(1, 60), slot=SLOT, queue=st.integers(0, 30), tenant=st.integers(0, 30))
def test_a_plan_is_cut_to_the_room_of_every_gate_and_nothing_else_is_cut(heads, want, slot, queue, tenant):
    within = plan_within(heads, want, slot=slot, gates=GATES, rooms={("queue", 1): queue, ("tenant", 7): tenant})
    taken = {lane: sum(take.count for take in within if take.lane_id == lane) for lane in (1, 2)}
    assert taken[1] + taken[2] <= queue and taken[2] <= tenant
    free = [[take for take in takes if take.lane_id > 2] for takes in (within, plan(heads, want, slot=slot))]
    assert sorted(free[0], key=str) == sorted(free[1], key=str)


@pytest.mark.parametrize("room", [1, 2, 8, 16])
def test_little_room_goes_round_lanes_kinds_and_the_oldest_as_much_room_does(room):
    """However much more is wanted than there is room for."""
    heads = [head(1, priority=0, task_id=900), node(1, priority=0), head(2, priority=0, task_id=901)]
    heads += [head(3, priority=9, task_id=1), node(3, priority=9, task_id=-1)]
    gates = {lane: [("queue", 1)] for lane in (1, 2, 3)}
    total: Counter[Row] = Counter()
    for slot in range(0, 16 * 16 * 7, room):
        for take in plan_within(heads, 100, slot=slot, gates=gates, rooms={("queue", 1): room}):
            total[take.row] += take.count
    shares = {(1, 0, False): 392, (1, 0, True): 392, (2, 0, False): 784, (3, 9, False): 112, (3, 9, True): 112}
    assert total == shares


PLAIN, NODES, LATER = (1, 5, False), (1, 5, True), (1, 9, False)


def takes_of(*rows: Row, each: int = 5) -> list[Take]:
    return [Take(lane_id=r[0], priority=r[1], floor=1, count=each, is_node=r[2]) for r in rows]


@pytest.mark.parametrize(
    ("asked", "taken", "short"),
    [
        ([PLAIN], {PLAIN: 5}, set()),
        ([PLAIN], {PLAIN: 4}, {PLAIN}),
        ([PLAIN], {}, {PLAIN}),
        ([PLAIN, NODES], {PLAIN: 1, NODES: 5}, {PLAIN}),
        ([PLAIN, NODES], {PLAIN: 5, NODES: 1}, {NODES}),
        ([PLAIN, NODES], {PLAIN: 1, NODES: 1}, {PLAIN, NODES}),
        ([PLAIN, LATER], {PLAIN: 1, LATER: 5}, {PLAIN}),
        ([PLAIN, LATER], {PLAIN: 5, LATER: 4}, {LATER}),
        # One head is alone in its lane, and its take went on into the other kind.
        ([PLAIN], {PLAIN: 1, NODES: 4}, set()),
        ([PLAIN], {PLAIN: 1, NODES: 3}, {PLAIN}),
    ],
)
def test_a_head_is_spent_if_it_gave_less_than_it_was_asked_for(asked, taken, short):
    assert short_of(takes_of(*asked), taken) == short


@given(data=st.data(), heads=HEADS, want=WANT, slot=SLOT)
def test_where_something_is_missing_a_head_is_spent(data, heads, want, slot):
    """Or a claimer would ask without end."""
    takes = plan(heads, want, slot=slot)
    taken = {take.row: data.draw(st.integers(0, take.count)) for take in takes}
    assert bool(short_of(takes, taken)) == (sum(taken.values()) < want)
