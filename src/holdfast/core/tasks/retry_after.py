"""Retry-After as a delay: seconds, a duration, or an HTTP date relative to the time it was sent."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.values.duration import seconds_of
from holdfast.errors import Invalid

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATE = re.compile(
    r"(?:mon|tue|wed|thu|fri|sat|sun), ([0-9]{2}) ([a-z]{3}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) gmt"
)


def requested_delay(value: Any, *, sent_at: datetime | None) -> timedelta | None:
    """Read a requested delay; None if it is neither a duration nor a date, or the start time is unknown.

    The sender's own date is the best start, because an error of the local clock does not change the difference.
    """
    if (until := value if isinstance(value, datetime) else http_date(value)) is not None:
        is_known = sent_at is not None and until.tzinfo is not None
        return max(timedelta(), until - sent_at) if is_known and sent_at is not None else None
    try:
        return timedelta(seconds=seconds_of(value))
    except Invalid:
        return None


def http_date(text: Any) -> datetime | None:
    """Parse `Wed, 21 Oct 2026 07:28:00 GMT`; None if the text is not such a date."""
    found = _DATE.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if found is None or found[2] not in _MONTHS:
        return None
    day, _, year, hour, minute, second = found.groups()
    month = _MONTHS.index(found[2]) + 1
    try:
        return datetime(int(year), month, int(day), int(hour), int(minute), min(59, int(second)), tzinfo=UTC)
    except ValueError:
        return None
