"""The database server dies without warning, under load, again and again."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from tests.faults.load import Load, all_over
from tests.faults.test_connections import working
from tests.faults.victim_app import app
from tests.waiting import eventually

from holdfast.engine.engine import Engine
from holdfast.store.embedded.server import start, status
from holdfast.testing.databases import remove_home, throw_away_home

pytestmark = pytest.mark.crash

CRASHES = 3
DURABLE = {"shared_buffers": "32MB", "max_connections": "60"}


@pytest.fixture
def home():
    folder = throw_away_home()
    yield folder
    remove_home(folder)


async def test_a_server_that_stops_at_once_loses_nothing(home, log, chance, quick_settings):
    server = await asyncio.to_thread(start, home, settings=DURABLE)
    settings = replace(quick_settings, url=server.url)
    app.configure(settings)
    try:
        async with Engine(server.url, settings, migrates=True) as engine, app.client() as client:
            async with working(settings, server.url):
                load = Load(client, chance)
                for _ in range(CRASHES):
                    for _ in range(chance.randint(10, 40)):
                        await load.step()
                    feeding = asyncio.create_task(_feed(load, 10))
                    await _crash(home)
                    server.close()
                    server = await asyncio.to_thread(start, home, settings=DURABLE)
                    await feeding
                await all_over(engine)
            await load.judge(engine, log)
    finally:
        server.close()


async def _feed(load: Load, steps: int) -> None:
    for _ in range(steps):
        await load.step()


async def _crash(home) -> None:
    """SIGQUIT is an immediate stop: no checkpoint, every session cut."""
    pid = status(home).pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    await eventually(lambda: not status(home).is_running)
