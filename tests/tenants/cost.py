"""What the wall costs: `python -m tests.tenants.cost` runs exchanges of a hundred with and without it, in turn.

On a throw-away server of its own. Both sides do the same: settle a hundred attempts, claim the next hundred.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.engine import Engine
from holdfast.server.worker_api.remote_workers import CompletedReport, RemoteWorkers
from holdfast.settings.settings import Settings
from holdfast.testing import factories as a
from holdfast.testing.databases import Databases, remove_home, start_throw_away, throw_away_home
from holdfast.testing.engine_harness import EngineHarness

BATCH = 100
ROUNDS = 150
WARM = 20


class Side:
    """One worker elsewhere on one kind of engine."""

    def __init__(self, engine: Engine) -> None:
        self.crew = RemoteWorkers(engine)
        self.worker_id = 0
        self.dones: list[CompletedReport] = []
        self.seconds: list[float] = []

    async def exchange(self) -> None:
        if self.worker_id == 0:
            self.worker_id = await self.crew.register(
                name="w", actions=[a.ACTION], queues=None, slots=1_000, version="", labels="{}"
            )
        began = time.perf_counter()
        given = await self.crew.exchange(self.worker_id, held=[], dones=self.dones, queues=None, limit=BATCH)
        self.seconds.append(time.perf_counter() - began)
        assert (given.accepted, len(given.tasks)) == (len(self.dones), BATCH)
        self.dones = [
            CompletedReport(
                task_id=int(one.task_id), attempt=one.attempt, lease_token=one.lease_token, outcome=Completed(b"null")
            )
            for one in given.tasks
        ]


async def measure(url: str) -> None:
    async with Engine(url, Settings()) as engine:
        harness = EngineHarness(engine)
        for _ in range(2 * (ROUNDS + WARM) // 100 + 1):
            await harness.enqueue_many(a.a_task(), [{}] * (100 * BATCH))
        direct, walled = Side(engine), Side(engine.of(engine.tenant_id))
        for _ in range(ROUNDS + WARM):
            await direct.exchange()
            await walled.exchange()
    without, within = (statistics.median(side.seconds[WARM:]) for side in (direct, walled))
    print(f"exchange of {BATCH}: {1000 * without:.2f} ms without, {1000 * within:.2f} ms behind the wall")
    print(f"ratio {within / without:.3f}")


async def main() -> None:
    home = throw_away_home()
    server = start_throw_away(home)
    try:
        databases = Databases(server.url)
        url = await databases.create()
        await measure(url)
        await databases.drop(url)
    finally:
        server.close()
        remove_home(home)


if __name__ == "__main__":
    asyncio.run(main())
