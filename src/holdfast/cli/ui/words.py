"""Text for states, ages and counts on a terminal: always an icon and a word, with a colour where available."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from holdfast.core.drawing.state_style import style_of
from holdfast.core.values.duration import human

TERMINAL_HUES = {"neutral": "", "running": "blue", "attention": "yellow", "succeeded": "cyan", "failed": "red"}
"""The colours of `holdfast.core.drawing.state_style` as basic terminal colours."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def state_text(state: str, attempt: str = "") -> str:
    """Return for example `↻ retrying 2/4`."""
    return f"{icon(state)} {state}{f' {attempt}' if attempt else ''}"


def icon(state: str) -> str:
    return style_of(state).icon


def hue(state: str) -> str:
    """Return the colour of a state; empty for neutral states."""
    return TERMINAL_HUES[style_of(state).hue]


def strip_control_chars(text: object) -> str:
    """Remove control characters from text of unknown origin."""
    return _CONTROL.sub("�", str(text))


def one_line(text: object) -> str:
    return strip_control_chars(" ".join(str(text).split()))


def age(then: datetime | None, at: datetime | None = None) -> str:
    """Return for example `3m 04s ago`, or a dash."""
    if then is None:
        return "–"
    seconds = ((at or datetime.now(UTC)) - then).total_seconds()
    return f"{human(seconds)} ago" if seconds >= 0 else f"in {human(-seconds)}"


def lasted(start: datetime | None, end: datetime | None) -> str:
    return "–" if start is None or end is None else human(max(0.0, (end - start).total_seconds()))


def moment(instant: datetime | None, *, utc: bool) -> str:
    """Return an instant in local time, or in UTC."""
    if instant is None:
        return "–"
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if utc else f"{instant.astimezone():%Y-%m-%d %H:%M:%S}"


def compact(number: int | None, *, is_partial: bool = False) -> str:
    """Return for example `12.4k`; a count that may be too low gets a plus."""
    if number is None:
        return "–"
    plus = "+" if is_partial else ""
    if number < 10_000:
        return f"{number}{plus}"
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}{plus}"
    raise AssertionError("unreachable")


def counted(count: int, noun: str) -> str:
    """Return `1 worker`, `2 workers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def a_or_an(noun: str) -> str:
    """Return `a viewer`, `an operator`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
