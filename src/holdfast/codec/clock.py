"""The time of day, where an action or a worker needs one: the machine's, or that of a clock an app was given.

It decides nothing about tasks. When something is due, overdue or lost is said by the database's clock, and how long a
lease still lasts by the monotonic one; neither can be supplied.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from holdfast.errors import Invalid


class Clock(Protocol):
    """Tells the time of day: `App("shop", clock=…)`. Asked from any thread."""

    def now(self) -> datetime:
        """The time, with its time zone."""
        ...


_followed: weakref.ref[Clock] | None = None


def machine_now() -> datetime:
    """The time of this machine, unless a test moves it."""
    clock = None if _followed is None else _followed()
    return datetime.now(UTC) if clock is None else clock.now()


def follow(clock: Clock) -> None:
    """Let `machine_now` go by a test's clock, for as long as that is there."""
    global _followed
    _followed = weakref.ref(clock)


def unfollow(clock: Clock) -> None:
    """Let it be the machine's again, unless it follows another by now."""
    global _followed
    if _followed is not None and _followed() is clock:
        _followed = None


def now_of(clock: Any) -> Callable[[], datetime]:
    """How a clock is asked. What it answers is checked when it does: it may not be ready when the app is made."""
    if clock is None:
        return machine_now
    ask = getattr(clock, "now", None)
    if not callable(ask) or inspect.iscoroutinefunction(ask):
        raise _refused(f"{clock!r:.80} is no clock: it has no plain method `now`.")

    def now() -> datetime:
        told = ask()
        if not isinstance(told, datetime) or told.utcoffset() is None:
            raise _refused(f"The app's clock said {told!r:.80}, which is no time with a time zone.")
        return told

    return now


def _refused(why: str) -> Invalid:
    return Invalid(why, code="invalid_clock", advice="Let `now()` answer like `datetime.now(UTC)`.")
