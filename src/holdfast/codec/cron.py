"""Parsing of cron expressions, intervals and time zones. Mistakes are refused here, before anything is stored.

cronsim provides the calendar of a cron expression, as local times without a zone. `core.schedules.schedule` decides
what happens to them when clocks change.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.core.schedules.schedule import Cron, Interval, Timing
from holdfast.core.values.duration import DAY_SECONDS, seconds_of
from holdfast.errors import Invalid

INTERVAL_SECONDS_MIN = 1.0
INTERVAL_SECONDS_MAX = 366.0 * DAY_SECONDS
DEFAULT_ZONE = "UTC"

_CHARACTERS_MAX = 200
_FIELDS = 5
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_SOME_DAY = datetime(2024, 1, 1)


@lru_cache(maxsize=4096)
def timing_of(cron: str | None, every_seconds: float | None, timezone: str) -> Timing:
    """Return the timing of a schedule, or raise `Invalid`: exactly one of cron and interval, in a known zone."""
    if (cron is None) == (every_seconds is None):
        raise Invalid(
            "A schedule needs either a cron expression or an interval.",
            code="invalid_schedule",
            advice='Write cron="0 6 * * mon-fri" or every="10m".',
        )
    zone = zone_of(timezone)
    if every_seconds is not None:
        return Interval(step=timedelta(seconds=valid_interval(every_seconds)), zone=zone)
    assert cron is not None
    return _cron_of(cron, zone)


def valid_interval(every: str | float | timedelta) -> float:
    """Accept an interval of a second to a year, in seconds."""
    try:
        seconds = round(seconds_of(every), 6)
    except Invalid as error:
        raise Invalid(error.detail, code="invalid_interval", advice=error.advice) from error
    if not INTERVAL_SECONDS_MIN <= seconds <= INTERVAL_SECONDS_MAX:
        raise Invalid(
            f"A schedule cannot fire every {every!r}.",
            code="invalid_interval",
            advice="Choose an interval from one second to 366 days.",
        )
    return seconds


def zone_of(name: object) -> tzinfo:
    """Return the time zone of that name, such as `Europe/Berlin`."""
    if isinstance(name, str) and name in _zones():
        return ZoneInfo(name)
    shown = repr(name)[:80]
    near = get_close_matches(str(name)[:80], _zones(), n=1)
    advice = f"Did you mean {near[0]}?" if near else "Use a name of the IANA database, such as Europe/Berlin."
    raise Invalid(f"There is no time zone {shown}.", code="invalid_timezone", advice=advice)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _cron_of(text: object, zone: tzinfo) -> Cron:
    if not isinstance(text, str) or len(text) > _CHARACTERS_MAX:
        raise _refusal(text, f"it must be text of at most {_CHARACTERS_MAX} characters")
    expression = _NICKNAMES.get(text.strip().lower(), text)
    fields = expression.split()
    if len(fields) != _FIELDS:
        raise _refusal(text, f"it has {len(fields)} fields instead of {_FIELDS}")
    try:
        is_never = next(CronSim(expression, _SOME_DAY), None) is None
    except CronSimError as error:
        raise _refusal(text, str(error).lower()) from error
    if is_never:
        raise _refusal(text, "no such day exists within 50 years")

    def calendar(after: datetime) -> Iterator[datetime]:
        return CronSim(expression, after)

    return Cron(calendar=calendar, zone=zone, is_recurring=fields[1].startswith("*"))


def _refusal(text: object, why: str) -> Invalid:
    return Invalid(
        f"{str(text)[:80]!r} is not a cron expression: {why}.",
        code="invalid_cron",
        advice='Five fields: minute, hour, day of month, month, day of week, such as "0 6 * * mon-fri".',
    )
