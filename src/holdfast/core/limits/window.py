"""What was counted lately: a sliding window of twelve slices, as breakers and quotas look at it.

Slices are numbered from the epoch, so every process names the same one. A slice counts until it is over and a whole
window has passed: what a window says is never less than what happened in that time, and at most a twelfth older.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLICES = 12


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: how much was counted in all, and how much of it was of the counted kind."""

    number: int
    whole: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The slices of one guard as of `at` (seconds since the epoch); those that are over count no more."""

    seconds: float
    at: float
    slices: Sequence[Slice] = ()

    @property
    def slice_seconds(self) -> float:
        return self.seconds / SLICES

    @property
    def whole(self) -> int:
        return sum(one.whole for one in self._counted())

    @property
    def part(self) -> int:
        return sum(one.part for one in self._counted())

    def seconds_until_below(self, limit: int) -> float:
        """How long until fewer than `limit` of the counted kind are left, if none is added."""
        left = self.part
        if left < limit:
            return 0.0
        for one in sorted(self._counted(), key=lambda one: one.number):
            left -= one.part
            if left < limit:
                return max(0.0, (one.number + SLICES + 1) * self.slice_seconds - self.at)
        return self.seconds + self.slice_seconds

    def _counted(self) -> list[Slice]:
        now = math.floor(self.at / self.slice_seconds)
        # A slice of the future is a leftover of a clock that stepped back.
        return [one for one in self.slices if now - SLICES <= one.number <= now]
