"""The soak: for as long as asked, two or three faults at a time, at random, on real processes under load.

Not part of `make test`: `make soak`, ten minutes unless SOAK_SECONDS says otherwise. SOAK_SEED repeats a run's choices.
Ends with a table of what was done and how it came out; what was promised is then compared with what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.fleet import LEASE_SECONDS, Fleet
from tests.faults.load import Load, all_over
from tests.faults.proxy import Proxy
from tests.faults.victim_app import app

from holdfast.engine.engine import Engine
from holdfast.store.database import TRANSIENT
from holdfast.store.embedded.server import start, status
from holdfast.testing.databases import remove_home, throw_away_home

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

DURABLE = {"shared_buffers": "64MB", "max_connections": "100"}
FEEDERS = 3
PAUSE_SECONDS_MAX = 3.0


class Nemesis:
    """Does harm to a fleet, its connections and its server."""

    def __init__(self, home: Path, fleet: Fleet, proxy: Proxy, chance: random.Random) -> None:
        self.home = home
        self.fleet = fleet
        self.proxy = proxy
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.server = start(home, settings=DURABLE)
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a worker process": self.kill_child,
            "kill a parent": self.kill_parent,
            "freeze a worker process": self.freeze,
            "lose answers": self.lose_answers,
            "terminate sessions": self.terminate,
            "stop the server at once": self.crash,
        }

    async def rage(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            chosen = self.chance.sample(sorted(self.faults), self.chance.randint(1, 3))
            for name in chosen:
                self.counts[name] += 1
            await asyncio.gather(*(self.faults[name]() for name in chosen))
            await asyncio.sleep(self.chance.uniform(0.2, PAUSE_SECONDS_MAX))

    async def kill_child(self) -> None:
        self.fleet.kill_a_child(self.chance)

    async def kill_parent(self) -> None:
        self.fleet.kill_a_parent(self.chance)

    async def freeze(self) -> None:
        pid = self.fleet.signal_a_child(self.chance, signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(0.1, 2 * LEASE_SECONDS))
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def lose_answers(self) -> None:
        self.proxy.commits, self.proxy.others = 0.3, 0.05
        await asyncio.sleep(self.chance.uniform(0.2, 2.0))
        self.proxy.commits = self.proxy.others = 0.0

    async def terminate(self) -> None:
        with contextlib.suppress(*TRANSIENT):
            async with Engine(self.server.url, app.settings, sessions_max=1) as engine:
                await engine.database.fetch(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                    " and pid <> pg_backend_pid() and random() < 0.3"
                )

    async def crash(self) -> None:
        if (pid := status(self.home).pid) is None:
            return
        os.kill(pid, signal.SIGQUIT)
        await asyncio.to_thread(_until_stopped, self.home)
        self.server.close()
        self.server = await asyncio.to_thread(start, self.home, settings=DURABLE)


def _until_stopped(home: Path) -> None:
    while status(home).is_running:
        threading.Event().wait(0.01)


async def feed(load: Load, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await load.step()
        await asyncio.sleep(load.chance.uniform(0.0, 0.1))


async def test_nothing_is_lost_in_the_long_run(log, quick_settings, capsys):
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    seed = os.environ.get("SOAK_SEED") or str(random.randrange(10**9))
    chance = random.Random(seed)
    home = throw_away_home()
    first = await asyncio.to_thread(start, home, settings=DURABLE)
    async with Engine(first.url, quick_settings, migrates=True):
        pass
    proxy = Proxy(first.url, chance=chance, commits=0.0, others=0.0)
    try:
        async with proxy.serving() as url:
            app.configure(replace(quick_settings, url=url))
            fleet = Fleet(url, log, processes=2)
            nemesis = Nemesis(home, fleet, proxy, chance)
            first.close()
            stop = asyncio.Event()
            try:
                fleet.start()
                fleet.start()
                async with app.client() as client:
                    load = Load(client, chance)
                    feeders = [asyncio.create_task(feed(load, stop)) for _ in range(FEEDERS)]
                    await nemesis.rage(seconds)
                    stop.set()
                    await asyncio.gather(*feeders)
                async with Engine(nemesis.server.url, quick_settings) as engine:
                    await all_over(engine, seconds_max=180)
                    await load.judge(engine, log)
            finally:
                fleet.stop()
                nemesis.server.close()
        with capsys.disabled():
            print(f"\nsoak of {seconds:g} s, SOAK_SEED={seed}")
            print(f"  answers lost: {proxy.cut_commits} commits, {proxy.cut_others} others")
            for name, count in sorted((nemesis.counts + load.counts).items()):
                print(f"  {count:7d}  {name}")
    finally:
        remove_home(home)
