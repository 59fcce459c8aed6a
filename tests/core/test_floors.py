from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.floors import NODES_EVERY, SWEEP_SECONDS_MAX, LanePart, parts_above, slow_scans, sweep_seconds

ids = st.one_of(st.integers(0, 50), st.integers(NODES_EVERY, NODES_EVERY + 50))
floors = st.dictionaries(
    st.tuples(st.integers(1, 3), st.integers(0, 9), st.just(False)), st.integers(0, 50), max_size=8
).flatmap(
    lambda plain: st.dictionaries(
        st.tuples(st.integers(1, 3), st.integers(0, 9), st.just(True)),
        st.integers(NODES_EVERY, NODES_EVERY + 50),
        max_size=8,
    ).map(lambda nodes: plain | nodes)
)


def is_in(part: LanePart, lane_id: int, priority: int, task_id: int) -> bool:
    place = (priority, task_id)
    return part.lane_id == lane_id and (part.low_priority, part.low_id) <= place < (part.high_priority, part.high_id)


@given(floors, st.integers(0, 9), ids)
def test_of_a_lane_everything_but_what_is_below_a_floor_is_looked_at_once(known, priority, task_id):
    for lane_id in {row[0] for row in known}:
        is_node = task_id >= NODES_EVERY
        is_below = task_id < known.get((lane_id, priority, is_node), 0)
        assert sum(is_in(part, lane_id, priority, task_id) for part in parts_above(known)) == (not is_below)


def test_floors_are_used_only_while_a_look_at_everything_is_slow():
    assert 0 < sweep_seconds(0.1) < sweep_seconds(0.5) <= sweep_seconds(60.0) == SWEEP_SECONDS_MAX


def test_only_slow_looks_in_a_row_count():
    assert slow_scans(2, 0.1) == 3
    assert slow_scans(2, 0.001) == 0
