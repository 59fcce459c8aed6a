"""Resume positions of a worker in its lanes, and the schedule of full scans.

While an old snapshot is open, index entries of claimed rows cannot be removed, and a scan from the start of a lane
passes all of them. A floor lets a scan start where the last one ended. Tasks that are queued again with a smaller id (a
retry, a release, a re-drive, a late commit) lie below the floors. So floors are used only while full scans are slow,
and a full scan still runs regularly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from holdfast.core.tasks.selection import Row

SLOW_SECONDS = 0.05
"""A full scan that takes longer than this is worth avoiding."""
SLOW_SCANS = 3
"""The number of consecutive slow full scans that rules out a momentary load spike."""
SWEEP_SHARE = 20.0
"""Full scans take at most one twentieth of a worker's time."""
SWEEP_SECONDS_MAX = 15.0
"""The longest that tasks below the floors wait for a full scan."""
NODES_EVERY = 5_000_000_000
"""Plain tasks use the lower half of each id block and nodes the upper half; every half starts at a multiple of this."""
PRIORITY_LOW, PRIORITY_HIGH = -1, 32767


class LanePart(NamedTuple):
    """The queued tasks of a lane from one (priority, id), inclusive, to another, exclusive."""

    lane_id: int
    low_priority: int
    low_id: int
    high_priority: int
    high_id: int


def sweep_seconds(took_seconds: float) -> float:
    """Return how long floors may be used after a slow full scan that took `took_seconds`."""
    return min(SWEEP_SECONDS_MAX, SWEEP_SHARE * took_seconds)


def slow_scans(before: int, took_seconds: float) -> int:
    """Return the number of consecutive slow full scans, including this one."""
    return before + 1 if took_seconds >= SLOW_SECONDS else 0


def parts_above(floors: Mapping[Row, int]) -> list[LanePart]:
    """Return the parts of lanes that are not below a floor; together with the parts below they cover whole lanes."""
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
