"""Connections break at any moment, under load, in a worker, its heart, the loops and the client alike."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.faults.load import Load, all_over
from tests.faults.proxy import Proxy
from tests.faults.victim_app import app

from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.loops import Loops
from holdfast.worker.loop import Worker

pytestmark = pytest.mark.crash

_TERMINATE = """
select count(pg_terminate_backend(pid))
from (
  select pid
  from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and application_name = 'holdfast'
    and pid <> all($1::int[])
  order by random()
  limit $2
) as victims
"""


@asynccontextmanager
async def working(settings, url):
    """A worker and the repair loops in this process, on their own engine."""
    async with Engine(url, settings) as engine:
        worker = Worker(engine, app.actions)
        running = asyncio.create_task(worker.run())
        looping = asyncio.create_task(Loops(engine).run())
        await worker.ready.wait()
        try:
            yield worker
        finally:
            looping.cancel()
            worker.stop()
            await asyncio.gather(running, looping, return_exceptions=True)
            assert running.exception() is None


async def test_terminated_sessions_lose_nothing(load, engine, log, chance, quick_settings):
    async with working(quick_settings, engine.database.url):
        mine = [connection.get_server_pid() for connection in engine.database._pool._idle]
        for _ in range(20):
            for _ in range(8):
                await load.step()
            await engine.database.fetch(_TERMINATE, mine, chance.randint(1, 3))
        await all_over(engine)
    await load.judge(engine, log)


async def test_lost_commits_lose_nothing(engine, log, chance, quick_settings):
    proxy = Proxy(engine.database.url, chance=chance, commits=0.15, others=0.02)
    async with proxy.serving() as url:
        app.configure(replace(quick_settings, url=url))
        proxy.commits, commits = 0.0, proxy.commits
        proxy.others, others = 0.0, proxy.others
        async with app.client() as client, working(quick_settings, url):
            proxy.commits, proxy.others = commits, others
            load = Load(client, chance)
            for _ in range(150):
                await load.step()
            proxy.commits = proxy.others = 0.0
            await all_over(engine)
    await load.judge(engine, log)
    assert proxy.cut_commits > 3 and proxy.cut_others > 3
