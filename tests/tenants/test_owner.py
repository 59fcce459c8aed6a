"""An owner who is no superuser: migrates though it may not make roles, passes the walls, and pays nothing for them."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.engine import Engine
from holdfast.engine.queries.verify import verify
from holdfast.settings.settings import Settings
from holdfast.store.statements import sql
from holdfast.testing import factories as a
from holdfast.testing.databases import with_database
from holdfast.testing.engine_harness import EngineHarness


@pytest.fixture
async def owned(holdfast_url, needs_superuser):
    """The URL of an empty database whose owner is nothing but that."""
    name = f"holdfast_test_{uuid.uuid4().hex}"
    connection = await asyncpg.connect(holdfast_url)
    try:
        await connection.execute(f"create role {name} login")
        await connection.execute(f"create database {name} owner {name}")
        parts = urlsplit(with_database(holdfast_url, name))
        yield urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))
        await connection.execute(f"drop database {name} with (force)")
        await connection.execute(f"drop role {name}")
    finally:
        await connection.close()


async def test_an_owner_who_may_not_make_roles_works_as_before_and_passes_for_nothing(owned):
    async with Engine(owned, Settings(), migrates=True) as engine:
        harness = EngineHarness(engine)
        lease = await a.a_running_task(harness)
        await harness.settle(lease, Completed(b"null"))
        assert await engine.database.fetchval("select row_security_active('holdfast.live')")
        takes = ("'{1}'", "'{5}'", "'{0}'", "'{9}'", "1", "10", "'{}'", "'{}'", "'{}'")
        claim = sql("claim")
        for number, value in enumerate(takes, start=1):
            claim = claim.replace(f"${number}", value)
        plan = "\n".join(row[0] for row in await engine.database.fetch("explain (costs off) " + claim))
        ours = "One-Time Filter: (taken.run_id IS NULL)"  # a node has no body to look for
        assert "current_setting" not in plan and "One-Time Filter" not in plan.replace(ours, "")
        assert (await verify(engine.database)).is_sound


async def test_a_server_without_the_role_serves_nobody(owned):
    async with Engine(owned, Settings(), migrates=True) as engine:
        with pytest.raises(Exception, match="tenant_role_missing"):
            await engine.of(1).database.fetch("select 1")


@pytest.fixture
async def roles(holdfast_url, engine, needs_superuser):
    """Somebody who only reads, and somebody who works here without owning anything, as an administrator grants it."""
    names = {kind: f"{kind}_{uuid.uuid4().hex}" for kind in ("reader", "writer")}
    connection = await asyncpg.connect(holdfast_url)
    try:
        for kind, rights in (("reader", "select"), ("writer", "select, insert, update, delete")):
            await connection.execute(
                f"create role {names[kind]}; grant usage on schema holdfast to {names[kind]}; "
                f"grant {rights} on holdfast.live, holdfast.body, holdfast.tasks, holdfast.tenant to {names[kind]}"
            )
        await connection.execute("select holdfast.secure_tenants(); select holdfast.secure_tenants()")
        yield connection, names
    finally:
        await connection.execute("reset role")
        for name in names.values():
            await connection.execute(f"drop owned by {name}; drop role {name}")
        await connection.close()


async def test_who_only_reads_sees_every_row_and_moves_none(roles, harness):
    connection, names = roles
    await a.a_running_task(harness)
    await connection.execute(f"set role {names['reader']}")
    assert await connection.fetchval("select count(*) from holdfast.live") == 1
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.fetch("select holdfast.take_span(5)")
    assert not await connection.fetchval("select holdfast.may_act_for(1)"), (
        "functions with the owner's rights refuse it"
    )


async def test_who_works_here_gets_what_later_migrations_added(roles, harness):
    connection, names = roles
    await a.a_running_task(harness)
    await connection.execute(f"set role {names['writer']}")
    assert await connection.fetchval("select count(*) from holdfast.live") == 1
    assert await connection.fetchval("select count(*) from holdfast.past_items") == 0
    assert await connection.fetchval("select count(*) from holdfast.item_span") == 0
    assert await connection.fetchval("select holdfast.may_act_for(1)")
