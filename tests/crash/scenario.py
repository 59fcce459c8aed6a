"""One scenario of the sweep, and one round of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash.repair import Ended

from holdfast.dispatcher.engine import Engine
from holdfast.testing.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One round of a sweep, after the repair: what was arranged, said, and became of it."""

    engine: Engine
    given: dict[str, Any]
    said: Sequence[Any]
    ended: list[Ended]

    def by_id(self) -> dict[int, Ended]:
        return {one.task_id: one for one in self.ended}


Arrange = Callable[[Engine, Clock, dict[str, Any]], Awaitable[None]]
Judge = Callable[[Case], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`is_repeatable`: the caller may repeat the act after an unknown outcome, and does."""

    name: str
    arrange: Arrange
    judge: Judge
    is_repeatable: bool = True
    statements_min: int = 1
