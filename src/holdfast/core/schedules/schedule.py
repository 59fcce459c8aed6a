"""Firing times of schedules: the slots after an instant, as pure functions of a calendar and a zone.

A slot is an instant. Cron names local times, and the zone converts them to instants. A fixed local time (`30 2 * * *`)
fires once a day whatever the clocks do: a time that does not exist fires at the first instant after the gap, and a time
that occurs twice fires the first time. A cron whose hour field begins with a star (`*/15 * * * *`) is recurring: it
fires whenever the local clock matches, so an hour that occurs twice fires twice and a missing hour not at all.
Intervals count from 1970-01-01 00:00 UTC, so every process agrees on them and a restart does not shift them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum

Calendar = Callable[[datetime], Iterator[datetime]]
"""Yields the local times that a cron expression names, in order, strictly after a given one. Without zones."""

NEWEST_MAX = 100
"""How many due slots are decided one by one; older ones are counted and decided together."""

COUNT_MAX = 20_000
"""How many due slots one pass counts. After longer downtimes the next pass continues from there."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STRIDE = timedelta(days=7)
_SECOND = timedelta(seconds=1)


class Overlap(StrEnum):
    """What happens to a slot while the previous firing has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"
    ALLOW = "allow"


class Missed(StrEnum):
    """What happens to slots that passed while no scheduler ran."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """Firing at local times of a zone."""

    calendar: Calendar
    zone: tzinfo
    is_recurring: bool

    def slots_after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the slots strictly after an instant, in UTC, until the calendar ends, if it does."""
        after = instant.astimezone(UTC)
        if self.is_recurring:
            return _recurring(self.calendar, self.zone, after)
        return _fixed(self.calendar, self.zone, after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Firing at a fixed interval. The zone is only used to display times."""

    step: timedelta
    zone: tzinfo = UTC

    def slots_after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the slots strictly after an instant, in UTC, without end."""
        number = (instant - _EPOCH) // self.step
        while True:
            number += 1
            yield _EPOCH + number * self.step


Timing = Cron | Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """Due slots before the newest ones: their count, first and last."""

    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The due slots: the newest one by one, those before them together, and the next slot to come.

    If more slots are due than one pass counts, `upcoming` is due as well.
    """

    older: Older | None
    newest: tuple[datetime, ...]
    upcoming: datetime | None


def due_slots(timing: Timing, first: datetime, now: datetime, decided: Collection[datetime] = ()) -> Due:
    """Return the slots from `first`, which is one, to `now`, without the `decided` ones."""
    if isinstance(timing, Interval) and not decided and (now - first) // timing.step >= NEWEST_MAX:
        count = (now - first) // timing.step + 1 - NEWEST_MAX
        last = first + (count - 1) * timing.step
        newest = tuple(last + number * timing.step for number in range(1, NEWEST_MAX + 1))
        return Due(older=Older(count=count, first=first, last=last), newest=newest, upcoming=newest[-1] + timing.step)
    kept: deque[datetime] = deque()
    older: Older | None = None
    upcoming: datetime | None = None
    count = 0
    for slot in _from(timing, first):
        if slot in decided:
            continue
        if slot > now or count == COUNT_MAX:
            upcoming = slot
            break
        count += 1
        kept.append(slot)
        if len(kept) > NEWEST_MAX:
            older = _with(older, kept.popleft())
    if upcoming is not None and upcoming <= now:
        for slot in kept:
            older = _with(older, slot)
        kept.clear()
    return Due(older=older, newest=tuple(kept), upcoming=upcoming)


def first_undecided(timing: Timing, after: datetime, decided: Collection[datetime]) -> datetime | None:
    """Return the first slot after an instant that is not decided yet."""
    return next((slot for slot in timing.slots_after(after) if slot not in decided), None)


def _from(timing: Timing, first: datetime) -> Iterator[datetime]:
    yield first
    yield from timing.slots_after(first)


def _with(older: Older | None, slot: datetime) -> Older:
    if older is None:
        return Older(count=1, first=slot, last=slot)
    return Older(count=older.count + 1, first=older.first, last=slot)


def _fixed(calendar: Calendar, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    for local in calendar(_local(after, zone)):
        instant = _first_instant(local, zone)
        if instant > after:
            yield instant
            after = instant


def _recurring(calendar: Calendar, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """Yield every instant whose local time matches, one stretch of constant UTC offset after the other."""
    is_change = False
    while True:
        offset = _offset(after, zone)
        local = _local(after, zone)
        change: datetime | None = None
        # A stretch includes the instant at which it begins.
        for candidate in calendar(local - _SECOND if is_change else local):
            instant = (candidate - offset).replace(tzinfo=UTC)
            change = _first_change(zone, after, instant)
            if change is not None:
                break
            yield instant
            after = instant
        if change is None:
            return
        after, is_change = change, True


def _first_instant(local: datetime, zone: tzinfo) -> datetime:
    """Return when a local time first occurs; for one that does not exist, when the clock jumps over it."""
    instant = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _local(instant, zone) == local:
        return instant
    earliest = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first_change(zone, earliest, instant) or instant


def _first_change(zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first instant in (after, until] with another UTC offset than `after`.

    Offsets change on whole seconds.
    """
    offset = _offset(after, zone)
    low = after.replace(microsecond=0)
    while low < until:
        high = min(low + _STRIDE, until)
        if _offset(high, zone) != offset:
            while high - low > _SECOND:
                middle = low + (high - low) // 2
                middle = middle.replace(microsecond=0)
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            return high
        low = high
    return None


def _local(instant: datetime, zone: tzinfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)
