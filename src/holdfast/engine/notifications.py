"""News: what a transaction changed that others wait for, to be told once it has committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

import msgspec


class Notifications(msgspec.Struct, frozen=True):
    """What to announce after the commit (see `follow`): lanes with new work, runs that ended and are awaited, or have a
    parent to answer."""

    lanes: set[int]
    awaited: list[int]
    children: list[int]
    waits: set[int] = set()
    """Runs of which a node began to wait for an event, which may have come already."""
    counted: Mapping[int, int] = {}
    """Of the lanes, those whose new work was counted: so many tasks, and no more."""
    stops: frozenset[int] = frozenset()
    """Workers of which attempts were asked to stop."""

    @property
    def released(self) -> int:
        """How many tasks were let go, of those that were counted."""
        return sum(self.counted.values())

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.lanes or self.awaited or self.children or self.waits or self.stops)

    def and_(self, other: Notifications) -> Notifications:
        uncounted = (self.lanes - self.counted.keys()) | (other.lanes - other.counted.keys())
        counted = Counter(self.counted) + Counter(other.counted)
        return Notifications(
            self.lanes | other.lanes,
            self.awaited + other.awaited,
            self.children + other.children,
            self.waits | other.waits,
            {lane_id: count for lane_id, count in counted.items() if lane_id not in uncounted},
            self.stops | other.stops,
        )

    def less(self, taken: Iterable[int]) -> Notifications:
        """What is left to tell when tasks of these lanes were taken in the same transaction: nobody else need be woken
        for a lane that gained no more than it lost."""
        if not self.counted:
            return self
        lost = Counter(taken)
        rest = {lane_id for lane_id in self.lanes if lost[lane_id] < self.counted.get(lane_id, inf)}
        return Notifications(rest, self.awaited, self.children, self.waits, stops=self.stops)


NO_NOTIFICATIONS = Notifications(set(), [], [])
