"""The lag of the event loop, for /metrics."""

from __future__ import annotations

import asyncio
import time


class LoopLag:
    """Measures at fixed intervals how late the event loop wakes up, and keeps the last readings."""

    SECONDS = 0.25
    KEPT = 40

    def __init__(self) -> None:
        self._seen = [0.0] * self.KEPT
        self._turn = 0

    @property
    def seconds(self) -> float:
        """The longest delay of the last ten seconds."""
        return max(self._seen)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await self.once()

    async def once(self) -> None:
        """Take one reading."""
        wanted = time.monotonic() + self.SECONDS
        await asyncio.sleep(self.SECONDS)
        self._seen[self._turn % self.KEPT] = max(0.0, time.monotonic() - wanted)
        self._turn += 1
