"""Circuit breaker per action: stops attempts of an action that keeps failing, and closes again after trials.

A closed breaker admits every attempt and counts results. Enough failures open it, and no attempt starts. After a while
it is half-open: a few trial attempts start. One failed trial opens it again; when all trials passed, it closes. Only
failures that a retry could fix count, because an action that rejects bad input is not broken. Lost attempts do not
count, because they say nothing about the action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from holdfast.core.limits.window import Window
from holdfast.core.values.duration import DAY_SECONDS, seconds_of
from holdfast.errors import Invalid

COUNT_MAX = 1_000_000
SECONDS_MIN, SECONDS_MAX = 0.1, DAY_SECONDS


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


CIRCUIT_CODES: Mapping[CircuitState, str] = {
    CircuitState.CLOSED: "c",
    CircuitState.OPEN: "o",
    CircuitState.HALF_OPEN: "h",
}

CIRCUIT_TRANSITIONS: Mapping[CircuitState, frozenset[CircuitState]] = {
    CircuitState.CLOSED: frozenset({CircuitState.OPEN}),
    CircuitState.OPEN: frozenset({CircuitState.HALF_OPEN, CircuitState.CLOSED}),
    CircuitState.HALF_OPEN: frozenset({CircuitState.OPEN, CircuitState.CLOSED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When an action's breaker opens and how it closes. Durations may be written as `"60s"`."""

    share: float = 0.5
    attempts_min: int = 20
    window_seconds: float = 60.0
    open_seconds: float = 30.0
    trials: int = 3

    def __post_init__(self) -> None:
        for name in ("window_seconds", "open_seconds"):
            object.__setattr__(self, name, seconds_of(getattr(self, name)))
            if not SECONDS_MIN <= getattr(self, name) <= SECONDS_MAX:
                raise _refusal(name, getattr(self, name), f"it must be between {SECONDS_MIN:g} s and a day")
        for name in ("attempts_min", "trials"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= COUNT_MAX:
                raise _refusal(name, value, f"it must be a whole number from 1 to {COUNT_MAX}")
        object.__setattr__(self, "share", valid_share("breaker", self.share))

    @classmethod
    def of(cls, declared: object) -> Breaker | None:
        """Read an action's declaration: nothing, `True` for the defaults, a mapping of fields, or a `Breaker`."""
        match declared:
            case None | False:
                return None
            case True:
                return cls()
            case Breaker():
                return declared
            case Mapping():
                return cls(**known_fields("breaker", cls, declared))
            case _:
                raise _refusal("declaration", declared, "it must be true or hold the fields of a breaker")


def trips(breaker: Breaker, window: Window) -> bool:
    """Return whether the counts of the window open a closed breaker."""
    return window.whole >= breaker.attempts_min and window.part >= breaker.share * window.whole


def trial_room(breaker: Breaker, *, passed: int, running: int) -> int:
    """Return how many more trials a half-open breaker may start.

    At least one may be running, or it could never close.
    """
    return max(0, max(1, breaker.trials - passed) - running)


def after_trials(breaker: Breaker, *, passed: int, failed: int) -> CircuitState:
    """Return the state of a half-open breaker after trials; `passed` counts all trials since it became half-open."""
    if failed:
        return CircuitState.OPEN
    return CircuitState.CLOSED if passed >= breaker.trials else CircuitState.HALF_OPEN


def valid_share(what: str, share: object) -> float:
    """Return a share as a number above 0 and up to 1; `"20%"` is accepted too."""
    number = share
    if isinstance(share, str) and share.strip().endswith("%"):
        try:
            number = float(share.strip()[:-1]) / 100
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1:
        raise Invalid(
            f"The {what}'s share is {str(share)[:80]}: it must be above 0 and up to 1, or a percentage.",
            code="invalid_guard",
            field="share",
        )
    return float(number)


def known_fields(what: str, kind: type, declared: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the given mapping if it contains only fields of `kind`."""
    names = [field.name for field in fields(kind)]
    if unknown := [str(name) for name in declared if name not in names]:
        raise Invalid(
            f"A {what} has no field {', '.join(sorted(unknown))}.",
            code="invalid_guard",
            advice=f"Its fields are {', '.join(names)}.",
        )
    return dict(declared)


def _refusal(field: str, value: object, why: str) -> Invalid:
    return Invalid(f"The breaker's {field} is {str(value)[:80]}: {why}.", code="invalid_guard", field=field)
