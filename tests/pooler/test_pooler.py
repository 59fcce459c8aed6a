"""What is particular about a pooler: it is noticed, nothing relies on a session, and LISTEN finds another way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.pooler.conftest import SERVER_CONNECTIONS, pooling

import holdfast as hf
from holdfast.client.client import Client
from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.queries.checkup import Level, check_up
from holdfast.settings.settings import Settings
from holdfast.store.database import Database
from holdfast.store.migrate import migrate, schema_version
from holdfast.testing.databases import with_database
from holdfast.wakeups.listener import hears
from holdfast.worker.runtime.worker import Worker

IGNORED = ",".join(
    (
        "statement_timeout",
        "idle_in_transaction_session_timeout",
        "lock_timeout",
        "synchronous_commit",
        "plan_cache_mode",
        "enable_seqscan",
        "jit",
    )
)


@asynccontextmanager
async def opened(url, **options):
    database = await Database(url, **options).open()
    try:
        yield database
    finally:
        await database.close()


async def everybody_at_once(database, callers=200):
    """Many callers with different statements on few server connections."""

    async def call(number):
        async with database.transaction() as session:
            assert await session.fetchval(f"select $1::int + {number % 7}", number) == number + number % 7
        return await database.fetchval(f"select $1::text || '{number % 5}'", "x")

    return await asyncio.gather(*(call(number) for number in range(callers)))


async def test_a_pooler_that_refuses_our_parameters_is_noticed(holdfast_url, direct_url):
    async with opened(holdfast_url) as pooled, opened(direct_url) as direct:
        assert (pooled.is_pooled, pooled.prepares, pooled.can_listen) == (True, False, False)
        assert (direct.is_pooled, direct.prepares, direct.can_listen) == (False, True, True)


async def test_many_callers_share_few_connections(holdfast_url):
    async with opened(holdfast_url, sessions_max=50) as database:
        assert len(await everybody_at_once(database)) == 200
        pids = {await database.fetchval("select pg_backend_pid()") for _ in range(20)}
        assert len(pids) <= SERVER_CONNECTIONS


async def test_a_pooler_told_to_ignore_our_parameters_needs_a_word(holdfast_url, direct_url, server_url):
    with pooling(server_url, ignore_startup_parameters=IGNORED) as pooler:
        async with opened(pooler.before(direct_url), sessions_max=50, prepare="off") as database:
            assert (database.is_pooled, database.prepares) == (False, False)
            await everybody_at_once(database)
            assert not await hears(database, seconds_max=0.3)


async def test_a_pooler_that_knows_prepared_statements_may_be_trusted_with_them(pooler, direct_url, server_url):
    if pooler.version < (1, 21):
        pytest.skip(f"pgbouncer {pooler.version} prepares nothing; 1.21 and newer do")
    with pooling(server_url, max_prepared_statements="200") as newer:
        async with opened(newer.before(direct_url), sessions_max=50, prepare="on") as database:
            assert (database.is_pooled, database.prepares) == (True, True)
            await everybody_at_once(database)


async def test_the_schema_is_brought_up_to_date_through_a_pooler(pooler, server_url, holdfast_databases, direct_url):
    name = "holdfast_test_empty_pooled"
    async with opened(server_url) as server, server.session() as session:
        await session.execute(f"drop database if exists {name} with (force)")
        await session.execute(f"create database {name}")
    try:
        async with opened(pooler.before(with_database(server_url, name))) as database:
            assert await migrate(database)
            assert await migrate(database) == []
            assert await schema_version(database) > 0
    finally:
        await holdfast_databases.drop(with_database(server_url, name))


async def test_a_direct_way_is_heard_on(holdfast_url, direct_url):
    async with opened(holdfast_url, direct_url=direct_url) as database:
        assert database.is_pooled
        assert await hears(database)


@pytest.mark.parametrize(("has_direct", "level"), [(True, Level.OK), (False, Level.WARNING)])
async def test_the_doctor_says_whether_notifications_arrive(holdfast_url, direct_url, has_direct, level, instant):
    async with opened(holdfast_url, direct_url=direct_url if has_direct else None) as database:
        (finding,) = [one for one in await check_up(database, now=instant) if one.name == "notifications"]
    assert (finding.level, "through a pooler" in finding.detail) == (level, True)
    assert ("HOLDFAST_DIRECT_URL" in finding.fix) is (level is Level.WARNING)


@pytest.fixture
def instant():
    from datetime import UTC, datetime

    return datetime.now(UTC)


def an_app():
    app = hf.App("pooled")

    @app.action(max_retries=1, retry={"base_backoff_secs": 0.01})
    async def double(ctx: hf.Context, x: int) -> int:
        if x == 3 and ctx.attempt == 1:
            raise ConnectionError("once")
        return 2 * x

    return app


@asynccontextmanager
async def working(engine, app):
    worker = Worker(engine, app.actions)
    tasks = [asyncio.create_task(worker.run()), asyncio.create_task(Loops(engine).run())]
    try:
        yield
    finally:
        worker.stop(within_seconds=0)
        await tasks[0]
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("has_direct", [True, False])
async def test_a_worker_from_end_to_end(holdfast_url, direct_url, has_direct):
    app = an_app()
    settings = Settings(url=holdfast_url, direct_url=direct_url if has_direct else None)
    settings = replace(settings, worker=replace(settings.worker, poll_seconds=0.1))
    async with (
        Engine(holdfast_url, settings) as engine,
        working(engine, app),
        Client(settings, app.actions) as client,
    ):
        handles = [await client.enqueue("pooled.double", x=number) for number in range(20)]
        assert [await handle.result(30) for handle in handles] == [2 * number for number in range(20)]
