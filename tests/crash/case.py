"""One round of the sweep, as those see it who judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash.repair import Ended

from holdfast.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One round of a sweep, after the repair: what was arranged, said, and became of it."""

    engine: Engine
    given: dict[str, Any]
    said: Sequence[Any]
    ended: list[Ended]

    def by_id(self) -> dict[int, Ended]:
        return {one.task_id: one for one in self.ended}
