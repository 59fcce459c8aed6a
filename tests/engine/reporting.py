"""Reporters for tests: one that keeps what it is told, and a module under which it is found."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from holdfast.codec.reporters import Reported, Reporter

REFERENCE = "shop_events:reporter"
URL = f"reporter:{REFERENCE}"


class Spy:
    """Keeps every event it is told; `does` is done with each before it is taken, and may raise."""

    def __init__(self, does: Any = None) -> None:
        self.told: list[Reported] = []
        self.does = does
        self.made = 0
        self.closed = 0

    def __call__(self) -> Reporter:
        """As its own factory."""
        self.made += 1
        return self

    async def report(self, event: Reported) -> None:
        self.told.append(event)
        if self.does is not None:
            await self.does(event)

    async def close(self) -> None:
        self.closed += 1

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.told]


def installed(monkeypatch: Any, factory: Any) -> None:
    """Let `shop_events:reporter` be that factory."""
    module = ModuleType("shop_events")
    module.reporter = factory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_events", module)
