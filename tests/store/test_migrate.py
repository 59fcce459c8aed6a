"""The schema appears once, whoever asks for it, and beside running work."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.dispatcher.engine import Engine
from holdfast.errors import Unavailable
from holdfast.store.database import Database
from holdfast.store.migrate import known, migrate, schema_version
from holdfast.testing.factories import a_task


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


async def test_migrating_beside_live_work_waits_for_nobody(engine, dispatcher):
    await dispatcher.enqueue(a_task())
    async with engine.database.transaction() as session:
        await session.fetch("update holdfast.live set priority = 4")
        assert await asyncio.wait_for(migrate(engine.database), 5) == []


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
