"""A server that accepts no writes, as a standby does in a failover: unavailable for a while, never a driver's error."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.store.database import TRANSIENT, Database

WRITE = "insert into holdfast.queue (tenant_id, name) values (1, 'x')"


@pytest.fixture
def standby_url(holdfast_url):
    """The same database by connections that may not write; what the server answers to a write is a standby's answer."""
    return f"{holdfast_url}&default_transaction_read_only=on"


@pytest.fixture
async def standby(standby_url):
    database = await Database(standby_url, sessions_max=1).open()
    yield database
    await database.close()


async def test_a_write_is_refused_as_unavailable_on_every_way(standby):
    async def by_transaction() -> None:
        async with standby.transaction() as session:
            await session.fetch(WRITE)

    for write in (lambda: standby.fetch(WRITE), lambda: standby.fetch_prepared(WRITE), by_transaction):
        with pytest.raises(Unavailable) as refused:
            await write()
        assert refused.value.code == "database_read_only" and isinstance(refused.value, TRANSIENT)


async def test_the_connection_is_replaced_so_that_the_next_one_may_find_the_new_primary(standby):
    before = await standby.fetchval("select pg_backend_pid()")
    with pytest.raises(Unavailable):
        await standby.fetch(WRITE)
    assert await standby.fetchval("select pg_backend_pid()") != before


async def test_a_client_hears_that_it_may_try_again(standby_url):
    app = hf.App("shop", settings=hf.Settings(url=standby_url))

    @app.action
    def charge(order: int) -> None: ...

    with pytest.raises(Unavailable) as refused:
        async with app.client() as client:
            await client.enqueue(charge, order=1)
    assert refused.value.code == "database_read_only" and "try again" in refused.value.advice
