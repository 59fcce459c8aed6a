"""Where in its lanes a worker left off: the parts that are still worth a look, and when to look at everything again.

While an old snapshot is open, rows that were taken stay in the index, and a look from the beginning of a lane passes
all of them. Floors let it begin where the last one ended. What is queued again with a smaller id (a retry, a release,
a re-drive, a commit that came late) lies below them, so they are used only while a look at everything is slow, and one
of those comes regularly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from holdfast.core.tasks.selection import Row

SLOW_SECONDS = 0.05
"""A look at everything that takes longer is worth avoiding."""
SLOW_LOOKS = 3
"""So many of them in a row are no accident of a busy machine."""
SWEEP_SHARE = 20.0
"""Looks at everything take at most a twentieth of a worker's time."""
SWEEP_SECONDS_MAX = 15.0
"""So long what lies below the floors waits at most."""
NODES_EVERY = 5_000_000_000
"""Ids of nodes begin at a multiple of this, and so do ids of plain tasks behind them."""
PRIORITY_LOW, PRIORITY_HIGH = -1, 32767


class LanePart(NamedTuple):
    """The queued tasks of a lane from one (priority, id) up to before another."""

    lane_id: int
    low_priority: int
    low_id: int
    high_priority: int
    high_id: int


def sweep_seconds(took_seconds: float) -> float:
    """How long floors may be used after a slow look at everything that took so long."""
    return min(SWEEP_SECONDS_MAX, SWEEP_SHARE * took_seconds)


def slow_looks(before: int, took_seconds: float) -> int:
    """How many looks at everything in a row were slow, with this one."""
    return before + 1 if took_seconds >= SLOW_SECONDS else 0


def parts_above(floors: Mapping[Row, int]) -> list[LanePart]:
    """The parts of lanes that are not below a floor. Together with what is below floors they are whole lanes."""
    return [
        part
        for lane_id, rows in groupby(sorted(floors), key=lambda row: row[0])
        for part in _parts_of(lane_id, list(rows), floors)
    ]


def _parts_of(lane_id: int, rows: list[Row], floors: Mapping[Row, int]) -> Iterable[LanePart]:
    low = PRIORITY_LOW
    for priority in sorted({row[1] for row in rows}):
        if low < priority:
            yield LanePart(lane_id, low, 0, priority, 0)
        node_floor = floors.get((lane_id, priority, True))
        plain_floor = floors.get((lane_id, priority, False), 0)
        if node_floor is None:
            yield LanePart(lane_id, priority, plain_floor, priority + 1, 0)
        else:
            nodes_begin = node_floor // NODES_EVERY * NODES_EVERY
            yield LanePart(lane_id, priority, min(plain_floor, nodes_begin), priority, nodes_begin)
            yield LanePart(lane_id, priority, node_floor, priority + 1, 0)
        low = priority + 1
    yield LanePart(lane_id, low, 0, PRIORITY_HIGH, 0)
