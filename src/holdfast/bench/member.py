"""One process of a crew: a worker, or the repair loops. Started as `python -m holdfast.bench.member JSON`.

Says `ready` on stdout, and leaves when its stdin is closed, so that it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from holdfast.bench.actions import QUEUE, bench_actions
from holdfast.bench.marks import Marks
from holdfast.bench.running import run
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.loops import Loops
from holdfast.settings import Settings, WorkerSettings
from holdfast.worker.loop import Worker

WORKER, LOOPS = "worker", "loops"


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is told to be. Everything not named here has its default."""

    role: str
    url: str
    marks: str
    capacity: int
    number: int = 0
    slots: int = 100
    lease_seconds: float
    heartbeat_seconds: float

    def settings(self) -> Settings:
        worker = WorkerSettings(
            slots=self.slots, lease_seconds=self.lease_seconds, heartbeat_seconds=self.heartbeat_seconds
        )
        return Settings(url=self.url, worker=worker)


class SettleClock:
    """Marks the moment after each commit that held results; a tap on the worker's own session."""

    def __init__(self, marks: Marks, number: int) -> None:
        self._marks = marks
        self._number = number
        self._has_results = False

    def before(self, statement: str) -> None:
        pass

    def after(self, statement: str) -> None:
        if statement == "commit":
            if self._has_results:
                self._marks.settle(self._number)
            self._has_results = False
        elif statement.startswith("-- holdfast: settle_"):
            self._has_results = True


async def work(orders: Orders) -> None:
    """Be a worker until stdin closes."""
    settings = orders.settings()
    marks = Marks(Path(orders.marks), orders.capacity)
    app = bench_actions(settings, marks).app
    async with Engine(orders.url, settings, tap=SettleClock(marks, orders.number)) as engine:
        worker = Worker(engine, app.actions, queues=[QUEUE], slots=orders.slots, name=f"bench-{orders.number}")
        running = asyncio.create_task(worker.run())
        await asyncio.wait({running, asyncio.create_task(worker.ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        print("ready", flush=True)
        await asyncio.wait({running, asyncio.create_task(stdin_closed())}, return_when=asyncio.FIRST_COMPLETED)
        worker.stop()
        await running


async def repair(orders: Orders) -> None:
    """Run the repair loops until stdin closes."""
    async with Engine(orders.url, orders.settings()) as engine:
        running = asyncio.create_task(Loops(engine).run())
        print("ready", flush=True)
        await asyncio.wait({running, asyncio.create_task(stdin_closed())}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def stdin_closed() -> None:
    """Wait for the other side to let go."""
    closed = asyncio.Event()

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            closed.set()

    loop.add_reader(descriptor, read)
    await closed.wait()


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    run(work(orders) if orders.role == WORKER else repair(orders))


if __name__ == "__main__":
    main()
