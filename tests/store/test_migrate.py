"""The schema appears once, whoever asks for it, and beside running work."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.engine.engine import Engine
from holdfast.errors import Unavailable
from holdfast.store import migrate as migration
from holdfast.store.database import Database
from holdfast.store.migrate import known, migrate, schema_version

OLD = 3
ENQUEUE = "select holdfast.enqueue('shop.charge')"
DECLARE = """
with p as (
  insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content)
  values (1, '\\x01', 3, 3, '{}')
  returning policy_id
)
insert into holdfast.action (tenant_id, name, queue, policy_id)
select 1, 'shop.charge', 'default', policy_id
from p
"""
WAITS = "select count(*) from pg_locks where not granted and relation = 'holdfast.live'::regclass"


@pytest.fixture
async def bare(holdfast_databases):
    """A database Holdfast has not touched."""
    url = await holdfast_databases.create()
    database = await Database(url, sessions_max=5).open()
    async with database.session() as session:
        await session.execute("drop schema holdfast cascade")
    yield database
    await database.close()
    await holdfast_databases.drop(url)


async def test_an_untouched_database_is_at_zero(bare):
    assert await schema_version(bare) == 0


async def test_migrating_applies_everything_in_order(bare):
    applied = await migrate(bare)
    assert [migration.number for migration in applied] == list(range(1, len(known()) + 1))
    assert await schema_version(bare) == len(known())


async def test_migrating_twice_applies_nothing_the_second_time(bare):
    await migrate(bare)
    assert await migrate(bare) == []


async def test_four_processes_at_once_apply_each_migration_once(bare):
    applied = await asyncio.gather(*(migrate(bare) for _ in range(4)))
    assert sorted(migration.number for each in applied for migration in each) == [one.number for one in known()]


@pytest.fixture
async def old(bare):
    """A database at the first migration that others can enqueue with; a worker has declared what they enqueue."""
    session = await bare.connect()
    for one in known()[:OLD]:
        assert await migration._apply(session, one)
    await session.fetch(DECLARE)
    await session.close()
    return bare


async def test_migrating_beside_live_work_gives_way_to_it_and_loses_none(old, monkeypatch):
    """Whoever comes behind a migration that waits gets through before the one it waits for is done."""
    monkeypatch.setattr(migration, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(migration, "PAUSE_SECONDS", (0.01, 0.1))
    monkeypatch.setattr(migration, "TRIES_MAX", 1000)
    accepted = [await old.fetchval(ENQUEUE)]
    async with old.transaction() as busy:
        accepted.append(await busy.fetchval(ENQUEUE))
        migrating = asyncio.ensure_future(migrate(old))
        while not await old.fetchval(WAITS):
            assert not migrating.done()
        accepted.append(await asyncio.wait_for(old.fetchval(ENQUEUE), 60))
        assert not migrating.done()
    while not migrating.done():
        accepted.append(await old.fetchval(ENQUEUE))
    assert [one.number for one in await migrating] == list(range(OLD + 1, len(known()) + 1))
    assert await old.fetchval("select array_agg(task_id order by task_id::bigint) from holdfast.tasks") == accepted


async def test_an_engine_refuses_a_schema_older_than_itself(bare, holdfast_settings):
    with pytest.raises(Unavailable) as refused:
        await Engine(bare.url, holdfast_settings).__aenter__()
    assert refused.value.code == "schema_outdated"


async def test_an_engine_migrates_when_it_is_told_to(bare, holdfast_settings):
    async with Engine(bare.url, holdfast_settings, migrates=True) as engine:
        assert await schema_version(engine.database) == len(known())


async def test_an_engine_accepts_a_schema_newer_than_itself(engine, holdfast_settings):
    await engine.database.fetch("insert into holdfast.migration (number, name) values (9999, 'later')")
    async with Engine(engine.database.url, holdfast_settings) as other:
        assert await schema_version(other.database) == 9999
