"""What every measurement is handed: where it runs, with how many workers, how much, and a way to say how far it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from holdfast.bench.actions import BenchActions, bench_actions
from holdfast.bench.arena import Arena
from holdfast.bench.crew import Member, crew
from holdfast.bench.marks import Marks
from holdfast.bench.member import LOOPS, WORKER, Orders
from holdfast.client.client import Client
from holdfast.settings import Settings


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

    @property
    def actions(self) -> BenchActions:
        return bench_actions(Settings(url=self.arena.url), self.marks)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """The public client, as a user would open it."""
        async with self.actions.app.client() as client:
            yield client

    @asynccontextmanager
    async def workers(
        self, count: int | None = None, *, lease_seconds: float | None = None, heartbeat_seconds: float | None = None
    ) -> AsyncIterator[list[Member]]:
        """Worker processes, with the repair loops in a process beside them; the block runs when all are connected."""
        worker = self.orders(lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds)
        numbers = range(self.processes if count is None else count)
        orders = [_as(worker, WORKER, number) for number in numbers]
        async with crew("holdfast.bench.member", [*orders, _as(worker, LOOPS, 0)]) as members:
            yield members[:-1]

    def orders(self, *, lease_seconds: float | None = None, heartbeat_seconds: float | None = None) -> Orders:
        defaults = Settings().worker
        return Orders(
            role=WORKER,
            url=self.arena.url,
            marks=str(self.marks.path),
            capacity=self.marks.capacity,
            slots=self.slots,
            lease_seconds=lease_seconds or defaults.lease_seconds,
            heartbeat_seconds=heartbeat_seconds or defaults.heartbeat_seconds,
        )


def _as(orders: Orders, role: str, number: int) -> Orders:
    return msgspec.structs.replace(orders, role=role, number=number)
