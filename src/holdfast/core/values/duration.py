"""Durations as people write them ("2m", "1h30m", "250 ms") and as people read them ("1m 04s").

Parsing is strict: an unknown unit, a repeated unit or a sign is refused, never guessed.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from holdfast.errors import Invalid

MINUTE_SECONDS = 60
HOUR_SECONDS = 60 * MINUTE_SECONDS
DAY_SECONDS = 24 * HOUR_SECONDS
DURATION_SECONDS_MAX = 100 * 365 * DAY_SECONDS

_TEXT_CHARACTERS_MAX = 64
_UNITS = {
    "w": 7.0 * DAY_SECONDS,
    "d": float(DAY_SECONDS),
    "h": float(HOUR_SECONDS),
    "m": float(MINUTE_SECONDS),
    "s": 1.0,
    "ms": 0.001,
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN = re.compile(_NUMBER)
_PARTS = re.compile(rf"(?:{_NUMBER}\s*(?:ms|[wdhms])\s*)+")
_PART = re.compile(rf"({_NUMBER})\s*(ms|[wdhms])")


def seconds_of(value: str | int | float | timedelta) -> float:
    """Convert a duration to seconds: `"1h30m"`, `"250ms"`, `"5 s"`, `30`, `timedelta(...)`.

    A bare number, also as text, is in seconds. The result is never negative and never above a hundred years.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = _seconds_of_text(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = _seconds_of_number(value)
    else:
        raise _refusal(value, "it must be text, a number of seconds or a timedelta")
    if not 0 <= seconds <= DURATION_SECONDS_MAX:
        raise _refusal(value, "it must be between 0 and 100 years")
    return seconds


def human(seconds: float) -> str:
    """Format seconds for people: `140 ms`, `3.2 s`, `1m 04s`, `2h 05m`, `2d 03h`."""
    if seconds < 0:
        return f"-{human(-seconds)}"
    if not math.isfinite(seconds):
        return "forever"
    if seconds == 0:
        return "0 s"
    if round(seconds * 1000) < 1000:
        return f"{round(seconds * 1000)} ms"
    if round(seconds, 1) < MINUTE_SECONDS:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < HOUR_SECONDS:
        return f"{whole // MINUTE_SECONDS}m {whole % MINUTE_SECONDS:02}s"
    if whole < DAY_SECONDS:
        return f"{whole // HOUR_SECONDS}h {whole % HOUR_SECONDS // MINUTE_SECONDS:02}m"
    return f"{whole // DAY_SECONDS}d {whole % DAY_SECONDS // HOUR_SECONDS:02}h"


def _seconds_of_number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _seconds_of_text(text: str) -> float:
    stripped = text.strip()
    if len(stripped) > _TEXT_CHARACTERS_MAX:
        raise _refusal(stripped[:20] + "…", f"it is longer than {_TEXT_CHARACTERS_MAX} characters")
    if _PLAIN.fullmatch(stripped):
        return float(stripped)
    if not _PARTS.fullmatch(stripped):
        raise _refusal(text, "it is not a number with a unit")
    parts = _PART.findall(stripped)
    sizes = [_UNITS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):
        raise _refusal(text, "units must appear once each, the larger first")
    return sum(float(number) * size for (number, _), size in zip(parts, sizes, strict=True))


def _refusal(value: object, why: str) -> Invalid:
    return Invalid(
        f"{value!r} is not a duration: {why}.",
        code="invalid_duration",
        advice='Write for example "250ms", "30s", "2m", "1h30m" or "7d".',
        value=str(value),
    )
