"""Notifications: the changes of a transaction that workers and callers wait for, sent after its commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

import msgspec


class Notifications(msgspec.Struct, frozen=True):
    """What to publish after the commit (see `publish_and_propagate`): lanes with new tasks, awaited tasks and runs that
    ended, and child runs that ended."""

    lanes: set[int]
    awaited: list[int]
    children: list[int]
    waits: set[int] = set()
    """Runs in which a node began to wait for an event; the event may have arrived before."""
    counted: Mapping[int, int] = {}
    """The number of new tasks per lane, for the lanes where it is exact."""
    stops: frozenset[int] = frozenset()
    """Workers that run attempts which were asked to stop."""

    @property
    def released(self) -> int:
        """Return how many tasks were released in the lanes with exact counts."""
        return sum(self.counted.values())

    def __bool__(self) -> bool:
        """Return whether there is anything to publish."""
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
        """Return what is left to publish when the same transaction claimed tasks of these lanes. A lane that gained no
        more tasks than were claimed needs no notification."""
        if not self.counted:
            return self
        lost = Counter(taken)
        rest = {lane_id for lane_id in self.lanes if lost[lane_id] < self.counted.get(lane_id, inf)}
        return Notifications(rest, self.awaited, self.children, self.waits, stops=self.stops)


NO_NOTIFICATIONS = Notifications(set(), [], [])
