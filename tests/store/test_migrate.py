"""Migrations: the schema once, then the files after it, from several processes and beside running work."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from holdfast.engine.engine import Engine
from holdfast.errors import Unavailable
from holdfast.store import migrate as migration
from holdfast.store.database import Database
from holdfast.store.migrate import known, migrate, schema_version

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


@pytest.fixture
def later(tmp_path):
    """Two migrations after the schema, in a folder as the package has one."""
    (tmp_path / "0002_column.sql").write_text("alter table holdfast.live add column added int;")
    (tmp_path / "0003_table.sql").write_text("create table holdfast.added (tenant_id int);")
    (tmp_path / "README.md").write_text("Not a migration.")
    return tmp_path


async def test_migrating_applies_everything_in_order(bare, later):
    applied = await migrate(bare, known(later))
    assert [(one.number, one.name) for one in applied] == [(1, "schema"), (2, "column"), (3, "table")]
    assert await bare.fetch("select number, name from holdfast.migration order by number") == [
        (1, "schema"),
        (2, "column"),
        (3, "table"),
    ]


@pytest.mark.slow("it fills tables or starts servers; test_an_engine_migrates_when_it_is_told_to is fast")
async def test_migrating_twice_applies_nothing_the_second_time(bare):
    assert [one.number for one in await migrate(bare)] == list(range(1, len(known()) + 1))
    assert await schema_version(bare) == len(known())
    assert await migrate(bare) == []


async def test_only_what_is_missing_is_applied(bare, later):
    await migrate(bare)
    missing = known(later)[len(known()) :]
    assert await migrate(bare, known(later)) == missing
    assert await bare.fetchval("select added from holdfast.live") is None


async def test_a_table_of_a_later_migration_is_behind_row_level_security(bare, later):
    await migrate(bare, known(later))
    forced = "select relforcerowsecurity from pg_class where oid = 'holdfast.added'::regclass"
    assert await bare.fetchval(forced)
    policies = await bare.fetch("select polname from pg_policy where polrelid = 'holdfast.added'::regclass order by 1")
    assert [policy["polname"] for policy in policies] == ["engine", "tenant"]


async def test_a_migration_that_fails_leaves_nothing_of_itself(bare, later):
    (later / "0004_mistake.sql").write_text("create table holdfast.mistake (tenant_id int); select 1 / 0;")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(bare, known(later))
    assert await schema_version(bare) == 3
    assert not await bare.fetchval("select to_regclass('holdfast.mistake') is not null")


def test_a_gap_between_migrations_is_refused(later):
    (later / "0002_column.sql").unlink()
    with pytest.raises(AssertionError, match="gap"):
        known(later)


async def test_four_processes_at_once_apply_each_migration_once(bare, later):
    applied = await asyncio.gather(*(migrate(bare, known(later)) for _ in range(4)))
    assert sorted(one.number for each in applied for one in each) == [1, 2, 3]


async def test_migrating_beside_live_work_gives_way_to_it_and_loses_none(bare, later, monkeypatch):
    """A transaction that queues up behind a waiting migration gets through before the one it waits for ends."""
    monkeypatch.setattr(migration, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(migration, "PAUSE_SECONDS", (0.01, 0.1))
    monkeypatch.setattr(migration, "TRIES_MAX", 1000)
    await migrate(bare)
    await bare.fetch(DECLARE)
    accepted = [await bare.fetchval(ENQUEUE)]
    async with bare.transaction() as busy:
        accepted.append(await busy.fetchval(ENQUEUE))
        migrating = asyncio.ensure_future(migrate(bare, known(later)))
        while not await bare.fetchval(WAITS):
            assert not migrating.done()
        accepted.append(await asyncio.wait_for(bare.fetchval(ENQUEUE), 60))
        assert not migrating.done()
    while not migrating.done():
        accepted.append(await bare.fetchval(ENQUEUE))
    assert [one.number for one in await migrating] == [2, 3]
    assert await bare.fetchval("select array_agg(task_id order by task_id::bigint) from holdfast.tasks") == accepted


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
