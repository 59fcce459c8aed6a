"""The parameters of a measurement: where it runs, with how many workers and tasks, and how it reports progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from holdfast.client.client import Client
from holdfast.errors import Unavailable
from holdfast.settings.settings import Settings
from holdfast_bench.app import app
from holdfast_bench.arena import Arena
from holdfast_bench.crew import READY_SECONDS_MAX, SETTLE_SECONDS, Member, crew, ended
from holdfast_bench.marks import Marks
from holdfast_bench.member import Orders
from holdfast_bench.waiting import LOOK_SECONDS

_PRESENT = "select count(*) from holdfast.worker where state = 'active'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the benchmark."""

    arena: Arena
    marks: Marks
    tasks: int
    rounds: int
    processes: int
    slots: int
    is_quick: bool
    is_full: bool
    say: Callable[[str], None]

    @asynccontextmanager
    async def client(self, tenant: str = "default") -> AsyncIterator[Client]:
        """Yield the public client, as a user would open it."""
        app.configure(Settings(url=self.arena.url, tenant=tenant))
        async with app.client() as client:
            yield client

    @asynccontextmanager
    async def workers(self, orders: Sequence[Orders] | None = None) -> AsyncIterator[list[Member]]:
        """Start workers under their supervisors; the block runs when all are registered and had time to connect."""
        orders = [self.orders()] if orders is None else orders
        expected = await self.arena.fetchval(_PRESENT) + sum(one.processes for one in orders)
        async with crew("holdfast_bench.member", orders) as members:
            await self._until_present(expected, members)
            await asyncio.sleep(SETTLE_SECONDS)
            yield members

    def orders(self) -> Orders:
        """Return the orders for this run's workers, with everything else at its default."""
        defaults = Settings().worker
        return Orders(
            url=self.arena.url,
            marks=str(self.marks.path),
            capacity=self.marks.capacity,
            processes=self.processes,
            slots=self.slots,
            lease_seconds=defaults.lease_seconds,
            heartbeat_seconds=defaults.heartbeat_seconds,
            has_loops=True,
        )

    def many_workers(self, processes: int) -> list[Orders]:
        return [msgspec.structs.replace(self.orders(), processes=processes)]

    async def _until_present(self, expected: int, members: Sequence[Member]) -> None:
        async with self.arena.connection() as connection:
            for _ in range(int(READY_SECONDS_MAX / LOOK_SECONDS)):
                if await connection.fetchval(_PRESENT) >= expected:
                    return
                if not all(member.is_alive for member in members):
                    raise ended(None)
                await asyncio.sleep(LOOK_SECONDS)
        raise Unavailable("The workers of the benchmark did not start.", code="bench_stuck")
