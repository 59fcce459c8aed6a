"""An owner who is no superuser: migrates though it may not make roles, passes the walls, and pays nothing for them."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from holdfast.core.outcome import Completed
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.verify import verify
from holdfast.settings import Settings
from holdfast.store.statements import sql
from holdfast.testing import factories as a
from holdfast.testing.databases import with_database
from holdfast.testing.dispatcher import Dispatcher


@pytest.fixture
async def owned(holdfast_url):
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
        dispatcher = Dispatcher(engine)
        lease = await a.a_running_task(dispatcher)
        await dispatcher.settle(lease, Completed(b"null"))
        assert await engine.database.fetchval("select row_security_active('holdfast.live')")
        takes = ("'{1}'", "'{5}'", "'{0}'", "'{9}'", "1", "10", "'{}'", "'{}'", "'{}'")
        claim = sql("claim")
        for number, value in enumerate(takes, start=1):
            claim = claim.replace(f"${number}", value)
        plan = "\n".join(row[0] for row in await engine.database.fetch("explain (costs off) " + claim))
        assert "current_setting" not in plan and "One-Time Filter" not in plan
        assert (await verify(engine.database)).is_sound


async def test_a_server_without_the_role_serves_nobody(owned):
    async with Engine(owned, Settings(), migrates=True) as engine:
        with pytest.raises(Exception, match="tenant_role_missing"):
            await engine.of(1).database.fetch("select 1")
