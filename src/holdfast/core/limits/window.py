"""Sliding window of twelve slices that breakers and quotas count in.

Slices are numbered from the epoch, so every process uses the same ones. A slice counts until it is over and a whole
window has passed. So a window never counts less than what happened in its time, and the events that it counts are at
most a twelfth of a window too old.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLICES = 12


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: how many events were counted in all (`whole`), and how many were of the watched kind (`part`)."""

    number: int
    whole: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The slices of one breaker or quota as of `at` (seconds since the epoch); expired slices do not count."""

    seconds: float
    at: float
    slices: Sequence[Slice] = ()

    @property
    def slice_seconds(self) -> float:
        return self.seconds / SLICES

    @property
    def whole(self) -> int:
        return sum(counted.whole for counted in self._counted())

    @property
    def part(self) -> int:
        return sum(counted.part for counted in self._counted())

    def seconds_until_below(self, limit: int) -> float:
        """Return the seconds until `part` falls below `limit` if no event is added."""
        left = self.part
        if left < limit:
            return 0.0
        for counted in sorted(self._counted(), key=lambda bucket: bucket.number):
            left -= counted.part
            if left < limit:
                return max(0.0, (counted.number + SLICES + 1) * self.slice_seconds - self.at)
        return self.seconds + self.slice_seconds

    def _counted(self) -> list[Slice]:
        now = math.floor(self.at / self.slice_seconds)
        # A slice in the future is left over from before the clock was set back.
        return [counted for counted in self.slices if now - SLICES <= counted.number <= now]
