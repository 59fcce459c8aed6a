"""One scenario of the sweep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.crash.case import Case

from holdfast.engine.engine import Engine
from holdfast.testing.clock import DatabaseClock

Arrange = Callable[[Engine, DatabaseClock, dict[str, Any]], Awaitable[None]]
Judge = Callable[[Case], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`is_repeatable`: the caller may repeat the act after an unknown outcome, and does."""

    name: str
    arrange: Arrange
    judge: Judge
    is_repeatable: bool = True
    statements_min: int = 1
