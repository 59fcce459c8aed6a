"""Connections break at any moment, under load, in a worker, its heart, the loops and the client alike."""

from __future__ import annotations

import asyncio
import signal
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.cli.conftest import Program
from tests.faults.load import Load, all_over
from tests.faults.proxy import Proxy
from tests.faults.test_processes import until
from tests.faults.victim_app import app

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.worker.runtime.worker import Worker

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
    """A worker and the maintenance loops in this process, on their own engine."""
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


@pytest.mark.slow("it runs a load through faults; test_terminated_sessions_lose_nothing is fast")
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


CONNECTIONS_MAX = 12


@pytest.fixture
async def scarce_url(engine, needs_superuser):
    """The same database for a role that may have few connections."""
    name = f"holdfast_test_{uuid.uuid4().hex}"
    await engine.database.fetch(f"create role {name} login connection limit {CONNECTIONS_MAX}")
    await engine.database.fetch(f"grant {await engine.database.fetchval('select current_user')} to {name}")
    await engine.database.fetch(f"grant holdfast_tenant to {name}")
    parts = urlsplit(engine.database.url)
    yield urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))
    await engine.database.fetch(f"drop role {name}")


async def test_no_connection_left_costs_no_lease(engine, harness, scarce_url, quick_settings):
    """The server has none for anybody, and the worker's pool none for the worker: its heart has one of its own."""
    gate, shop = asyncio.Event(), hf.App("scarce")

    @shop.action
    async def work() -> str:
        await gate.wait()
        return "done"

    shop.configure(quick_settings)
    async with (
        shop.client() as client,
        Engine(scarce_url, quick_settings, sessions_max=2) as own,
        AsyncExitStack() as all_of,
    ):
        worker = Worker(own, shop.actions)
        running = asyncio.create_task(worker.run())
        task = await client.enqueue(work)
        renewed = "select lease_expires_at > $1 from holdfast.live where state = 'r'"
        await until(engine, "select count(*) = 1 from holdfast.live where state = 'r'")
        first = await engine.database.fetchval("select lease_expires_at from holdfast.live")
        await until(engine, renewed, first)
        for _ in range(own.database.use.size):
            await all_of.enter_async_context(own.database.session())
        with pytest.raises(asyncpg.TooManyConnectionsError):
            for _ in range(CONNECTIONS_MAX):
                taken = await asyncpg.connect(scarce_url)
                all_of.push_async_callback(taken.close)
        await until(engine, renewed, await engine.database.fetchval("select holdfast.instant() + interval '2 s'"))
        assert await harness.reap_once() == 0
        await all_of.aclose()
        gate.set()
        assert await task.result(20) == "done"
        worker.stop()
        await running
    assert [row.attempt for row in await harness.attempts(task.task_id)] == [1]


@pytest.fixture
def program(scarce_url):
    made = Program(scarce_url)
    yield made
    made.close()


@asynccontextmanager
async def every_connection_taken(url):
    async with AsyncExitStack() as held:
        with pytest.raises(asyncpg.TooManyConnectionsError):
            for _ in range(CONNECTIONS_MAX + 1):
                taken = await asyncpg.connect(url)
                held.push_async_callback(taken.close)
        yield


async def said(process, text):
    """The lines that a process writes to its log, up to the one with this text."""
    lines = []
    while not lines or text not in lines[-1]:
        lines.append(await asyncio.to_thread(process.stderr.readline))
        assert lines[-1], f"{text!r} was not said: {lines}"
    return lines


@pytest.mark.parametrize(
    ("command", "ready"),
    [
        (("server", "--no-http"), "Maintenance loops on"),
        (("server",), "HTTP API on"),
        (("work", "tests.faults.victim_app:app"), "is ready"),
    ],
)
async def test_a_process_that_starts_while_no_connection_is_left_waits_for_one(scarce_url, program, command, ready):
    async with every_connection_taken(scarce_url):
        process = program.start(*command, HOLDFAST_ENV="local")
        lines = await said(process, "too many connections")
        assert "Trying again" in lines[-1] and process.poll() is None
    lines = await said(process, ready)
    assert not [line for line in lines if "too many connections" in line]
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 30) == 0


async def test_a_signal_ends_the_wait_for_a_connection(scarce_url, program):
    async with every_connection_taken(scarce_url):
        process = program.start("server", HOLDFAST_ENV="local")
        await said(process, "Trying again")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
