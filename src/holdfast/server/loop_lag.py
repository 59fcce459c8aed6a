"""How late the event loop is, for /metrics."""

from __future__ import annotations

import asyncio
import time


class LoopLag:
    """How late the event loop is: something is timed every so often, and the worst of the last readings is kept."""

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
        """One reading."""
        wanted = time.monotonic() + self.SECONDS
        await asyncio.sleep(self.SECONDS)
        self._seen[self._turn % self.KEPT] = max(0.0, time.monotonic() - wanted)
        self._turn += 1
