"""Time of day for actions and workers: the machine's, or that of a clock passed to the app.

It decides nothing about tasks. The database clock decides what is due, overdue or lost, and the monotonic clock how
long a lease lasts; neither can be replaced.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from holdfast.errors import Invalid


class Clock(Protocol):
    """Supplies the time of day: `App("shop", clock=…)`. Called from any thread."""

    def now(self) -> datetime:
        """Return the current time, with its time zone."""
        ...


_followed: weakref.ref[Clock] | None = None


def machine_now() -> datetime:
    """Return the time of this machine, unless a test replaced the clock."""
    clock = None if _followed is None else _followed()
    return datetime.now(UTC) if clock is None else clock.now()


def follow(clock: Clock) -> None:
    """Make `machine_now` use a test's clock, for as long as that object lives."""
    global _followed
    _followed = weakref.ref(clock)


def unfollow(clock: Clock) -> None:
    """Make `machine_now` use the machine's clock again, unless another clock replaced this one meanwhile."""
    global _followed
    if _followed is not None and _followed() is clock:
        _followed = None


def now_of(clock: Any) -> Callable[[], datetime]:
    """Return a function that reads a clock.

    Its result is checked on each call: it may not be ready when the app is made.
    """
    if clock is None:
        return machine_now
    ask = getattr(clock, "now", None)
    if not callable(ask) or inspect.iscoroutinefunction(ask):
        raise _refused(f"{clock!r:.80} is not a clock: it has no plain method `now`.")

    def now() -> datetime:
        returned = ask()
        if not isinstance(returned, datetime) or returned.utcoffset() is None:
            raise _refused(f"The app's clock returned {returned!r:.80}, which is not a time with a time zone.")
        return returned

    return now


def _refused(why: str) -> Invalid:
    return Invalid(why, code="invalid_clock", advice="`now()` must return a value like `datetime.now(UTC)`.")
