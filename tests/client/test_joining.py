"""`connection=` joins an open transaction of asyncpg; anything else is refused before anything is stored."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast.errors import Invalid


@pytest.fixture
async def pool(holdfast_url):
    async with asyncpg.create_pool(holdfast_url, min_size=1, max_size=2) as opened:
        yield opened


class OfAnotherDriver:
    """What a connection of psycopg or SQLAlchemy looks like from here."""

    def in_transaction(self) -> bool:
        return True

    async def execute(self, statement: str) -> None:
        raise AssertionError("nothing is to be said on it")


HAND_IN = [
    lambda client, connection: client.enqueue("shop.charge", order=1, connection=connection),
    lambda client, connection: client.enqueue(charge_once(client), order=1, connection=connection),
    lambda client, connection: client.enqueue_many("shop.charge", 3_000 * [{"order": 1}], connection=connection),
    lambda client, connection: client.start("shop.nightly", order=1, connection=connection),
]


def charge_once(client):
    return client.action("shop.charge").options(key="once")


async def stored(client) -> list[int]:
    tables = ("live", "body", "idempotency", "run", "lane", "flow")
    return [await client.engine.database.fetchval(f"select count(*) from holdfast.{table}") for table in tables]


async def test_what_cannot_be_joined_is_refused_before_anything_is_stored(app, pool):
    async with app.client() as client, pool.acquire() as without_transaction:
        cases = [
            (pool, "Pool", "acquired"),
            (OfAnotherDriver(), "OfAnotherDriver", "holdfast.enqueue"),
            ("postgresql:///shop", "str", "driver_connection"),
            (without_transaction, "no transaction open", "connection.transaction()"),
        ]
        for connection, detail, advice in cases:
            for hand_in in HAND_IN:
                with pytest.raises(Invalid) as refused:
                    await hand_in(client, connection)
                assert refused.value.code == "invalid_connection"
                assert detail in refused.value.detail and advice in refused.value.advice
        assert await stored(client) == [0, 0, 0, 0, 0, 0]


async def test_what_joined_a_transaction_shares_its_fate(app, pool):
    async with app.client() as client, pool.acquire() as connection:
        for is_kept in (False, True):
            transaction = connection.transaction()
            await transaction.start()
            for hand_in in HAND_IN:
                await hand_in(client, connection)
            assert (await stored(client))[:4] == [0, 0, 0, 0]
            await (transaction.commit() if is_kept else transaction.rollback())
        assert (await stored(client))[1:4] == [3_002, 1, 1]


def test_the_blocking_client_joins_none_and_says_how_to(app):
    with app.sync_client() as client:
        for hand_in in (client.enqueue, client.start):
            with pytest.raises(Invalid) as refused:
                hand_in("shop.charge", order=1, connection=None)
            assert (refused.value.code, "holdfast.enqueue" in refused.value.advice) == ("invalid_connection", True)


def test_a_flow_cannot_have_an_input_of_that_name(app):
    with pytest.raises(Invalid, match=r"'connection', which `client\.start` reserves") as refused:

        @app.flow
        def weekly(connection: str): ...

    assert refused.value.code == "invalid_flow"
