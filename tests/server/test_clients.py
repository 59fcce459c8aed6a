"""The clients a server keeps for tenants: only so many, and never one closed while it is used."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.identity.tenants import create_tenant
from holdfast.errors import NotFound
from holdfast.server.tenant_clients import TenantClients
from holdfast.testing.factories import a_running_task

LISTENING = """
    select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen %'
"""


@pytest.fixture
async def tenants(engine):
    made = [await create_tenant(engine.database, f"t{n}", actor="anna", reason="") for n in range(5)]
    return [one.tenant_id for one in made]


@pytest.fixture
async def clients(engine):
    made = TenantClients(engine, most=2)
    yield made
    await made.close()


async def waits(client):
    """Wait for something, as callers do: its client listens from now on."""
    with pytest.raises(NotFound):
        await client.ending("404", timeout=10)


async def test_those_that_asked_longest_ago_are_closed(clients, tenants, engine, eventually):
    for tenant_id in tenants:
        with clients.of(tenant_id) as client:
            await waits(client)

    async def is_two():
        return await engine.database.fetchval(LISTENING) == 2

    await eventually(is_two)
    assert len(clients) == 2


async def test_one_that_asks_again_is_kept(clients, tenants):
    with clients.of(tenants[0]) as first, clients.of(tenants[1]) as second:
        pass
    with clients.of(tenants[0]), clients.of(tenants[2]):
        pass
    with clients.of(tenants[0]) as again, clients.of(tenants[1]) as other:
        assert again is first and other is not second


async def test_one_in_use_is_never_closed(clients, tenants, harness):
    """Somebody waits for a task of the first tenant while callers of all others come and go."""
    lease = await a_running_task(harness)
    with clients.of(1) as client:
        waiting = asyncio.create_task(client.ending(lease.task_id, timeout=20))
        for tenant_id in tenants:
            with clients.of(tenant_id) as other:
                await waits(other)
        with clients.of(1) as same:
            assert same is client
        await harness.settle(lease, Completed(b"7"))
        assert (await waiting).state == "completed"
    assert len(clients) == 2


async def test_nothing_listens_after_the_end(clients, tenants, engine, eventually):
    with clients.of(tenants[0]) as client:
        await waits(client)
    await clients.close()

    async def is_none():
        return await engine.database.fetchval(LISTENING) == 0

    await eventually(is_none)
    assert len(clients) == 0
