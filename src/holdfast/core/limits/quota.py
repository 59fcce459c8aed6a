"""Retry quotas: limits on retries per window and as a share of the first attempts in it.

Quotas are checked when a retry becomes claimable, so a delayed retry costs its task nothing. A retry that finds no room
gets a time for its next check. These times are spread at the rate of the quota, so that a storm of delayed retries is
not checked on every pass. Only the count decides which retries go; the times merely reduce checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.limits.breaker import COUNT_MAX, SECONDS_MAX, SECONDS_MIN, known_fields, valid_share
from holdfast.core.limits.window import Window
from holdfast.core.values.duration import human, seconds_of
from holdfast.errors import Invalid

SHARE_DEFAULT = 0.2
WINDOWS_AHEAD_MAX = 10
"""A delayed retry is checked again after at most this many windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """At most `retries` per window, at most `share` of its first attempts, or both; without either, a share of 20 %.

    A share always allows one retry per window, so that a single failure need not wait for other work.
    """

    retries: int | None = None
    share: float | None = None
    window_seconds: float = 60.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "window_seconds", seconds_of(self.window_seconds))
        if not SECONDS_MIN <= self.window_seconds <= SECONDS_MAX:
            raise _refusal("window_seconds", self.window_seconds, f"it must be between {SECONDS_MIN:g} s and a day")
        if self.retries is None and self.share is None:
            object.__setattr__(self, "share", SHARE_DEFAULT)
        if self.share is not None:
            object.__setattr__(self, "share", valid_share("quota", self.share))
        if self.retries is not None and (
            not isinstance(self.retries, int) or isinstance(self.retries, bool) or not 1 <= self.retries <= COUNT_MAX
        ):
            raise _refusal("retries", self.retries, f"it must be a whole number from 1 to {COUNT_MAX}")

    @classmethod
    def of(cls, declared: object) -> Quota | None:
        """Read an action's declaration: nothing, `True` for the default share, a mapping of fields, or a `Quota`."""
        match declared:
            case None | False:
                return None
            case True:
                return cls()
            case Quota():
                return declared
            case Mapping():
                return cls(**known_fields("quota", cls, declared))
            case _:
                raise _refusal("declaration", declared, "it must be true or hold the fields of a quota")

    def allowance(self, first_attempts: int) -> int:
        """Return how many retries a window with that many first attempts may contain."""
        counted = COUNT_MAX if self.retries is None else self.retries
        shared = COUNT_MAX if self.share is None else max(1, math.floor(self.share * first_attempts + 1e-9))
        return min(counted, shared)

    def __str__(self) -> str:
        per = {60.0: "minute", 3600.0: "hour", 1.0: "second", 86400.0: "day"}.get(self.window_seconds)
        per = per or human(self.window_seconds)
        counted = "" if self.retries is None else f"{self.retries} per {per}"
        shared = "" if self.share is None else f"{100 * self.share:g} % of first attempts per {per}"
        return ", at most ".join(part for part in (counted, shared) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """One quota with its counts. `booked_seconds` is how far ahead of now its delayed retries are already spread."""

    quota_id: int
    quota: Quota
    window: Window
    lanes: frozenset[int]
    booked_seconds: float = 0.0

    @property
    def allowance(self) -> int:
        return self.quota.allowance(self.window.whole)

    @property
    def room(self) -> int:
        return max(0, self.allowance - self.window.part)

    @property
    def next_slot_seconds(self) -> float:
        return self.window.seconds_until_below(self.allowance)


@dataclass(slots=True)
class Admission:
    """Retries that may go (`admitted`), seconds until the others are checked again (`held`), and updates of
    the quotas.
    """

    admitted: list[int] = field(default_factory=list)
    held: dict[int, float] = field(default_factory=dict)
    spent: dict[int, int] = field(default_factory=dict)
    booked: dict[int, float] = field(default_factory=dict)


def admit(due: Sequence[tuple[int, int]], meters: Sequence[Meter]) -> Admission:
    """Admit due retries (task, lane) in order while every quota of their lane has room."""
    answer = Admission()
    rooms = {meter.quota_id: meter.room for meter in meters}
    paces = {meter.quota_id: _Pace(meter) for meter in meters}
    covering: dict[int, list[int]] = {}
    for meter in meters:
        for lane_id in meter.lanes:
            covering.setdefault(lane_id, []).append(meter.quota_id)
    for task_id, lane_id in due:
        lane_quotas = covering.get(lane_id, [])
        full = next((quota_id for quota_id in lane_quotas if rooms[quota_id] == 0), None)
        if full is not None:
            answer.held[task_id] = answer.booked[full] = paces[full].next()
            continue
        answer.admitted.append(task_id)
        for quota_id in lane_quotas:
            rooms[quota_id] -= 1
            answer.spent[quota_id] = answer.spent.get(quota_id, 0) + 1
    return answer


class _Pace:
    """Assigns check times to delayed retries, at the quota's rate, wrapping around after a few windows."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last = WINDOWS_AHEAD_MAX * meter.window.seconds
        self._step = meter.window.seconds / meter.allowance
        self._first: float | None = None
        self._at = 0.0

    def next(self) -> float:
        if self._first is None:
            # Retries admitted in this pass fill the window too, so no room appears before the oldest of them leaves it.
            self._first = self._meter.next_slot_seconds or self._meter.window.seconds
            self._at = max(self._first, min(self._meter.booked_seconds, self._last))
        self._at += self._step
        if self._at > self._last:
            self._at = self._first
        return self._at


def _refusal(field: str, value: object, why: str) -> Invalid:
    return Invalid(f"The quota's {field} is {str(value)[:80]}: {why}.", code="invalid_guard", field=field)
