"""How states, ages and counts look on a terminal: an icon and a word always, a hue where there is colour."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from holdfast.core.duration import human

ICONS = {
    "scheduled": "◷",
    "queued": "≡",
    "blocked": "⏸",
    "running": "▶",
    "retrying": "↻",
    "completed": "✓",
    "failed": "✕",
    "canceled": "⊘",
    "skipped": "↷",
    "upstream_failed": "✕",
    "timed_out": "✕",
    "lost": "⚡",
    "released": "↷",
    "active": "▶",
    "draining": "◔",
    "gone": "⊘",
    "paused": "⏸",
    "revived": "↻",
    "open": "✕",
    "retry_requested": "◷",
    "resolved": "✓",
    "ignored": "⊘",
    "awaiting_approval": "◷",
    "awaiting_version": "◷",
    "canary": "▶",
    "ramp": "▶",
    "stopped": "✕",
    "aborted": "⊘",
    "fired": "▶",
    "waiting": "◷",
    "missed": "✕",
    "pending": "▶",
    "unknown": "?",
    "done": "✓",
    "refused": "✕",
    "allowed": "✓",
    "denied": "✕",
}

HUES = {
    "running": "blue",
    "active": "blue",
    "retrying": "yellow",
    "revived": "yellow",
    "lost": "yellow",
    "draining": "yellow",
    "paused": "yellow",
    "missed": "yellow",
    "completed": "cyan",
    "resolved": "cyan",
    "retry_requested": "yellow",
    "open": "red",
    "canary": "blue",
    "ramp": "blue",
    "stopped": "red",
    "failed": "red",
    "timed_out": "red",
    "upstream_failed": "red",
    "pending": "blue",
    "unknown": "yellow",
    "done": "cyan",
    "allowed": "cyan",
    "refused": "red",
    "denied": "red",
}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def state_text(state: str, attempt: str = "") -> str:
    """`↻ retrying 2/4`."""
    return f"{ICONS.get(state, '·')} {state}{f' {attempt}' if attempt else ''}"


def hue(state: str) -> str:
    """The colour of a state; neutral ones have none."""
    return HUES.get(state, "")


def harmless(text: object) -> str:
    """Text of unknown origin without anything a terminal would obey."""
    return _CONTROL.sub("�", str(text))


def one_line(text: object) -> str:
    return harmless(" ".join(str(text).split()))


def age(then: datetime | None, at: datetime | None = None) -> str:
    """`3m 04s ago`, or a dash."""
    if then is None:
        return "–"
    seconds = ((at or datetime.now(UTC)) - then).total_seconds()
    return f"{human(seconds)} ago" if seconds >= 0 else f"in {human(-seconds)}"


def lasted(start: datetime | None, end: datetime | None) -> str:
    return "–" if start is None or end is None else human(max(0.0, (end - start).total_seconds()))


def moment(instant: datetime | None, *, utc: bool) -> str:
    """An instant in local time, or UTC where asked for."""
    if instant is None:
        return "–"
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if utc else f"{instant.astimezone():%Y-%m-%d %H:%M:%S}"


def compact(number: int | None, *, is_partial: bool = False) -> str:
    """`12.4k`; a count that may be short carries a plus."""
    if number is None:
        return "–"
    plus = "+" if is_partial else ""
    if number < 10_000:
        return f"{number}{plus}"
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}{plus}"
    raise AssertionError("unreachable")
