"""Throw-away databases: each its own, current, and gone afterwards."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from holdfast.store.database import Database
from holdfast.store.migrate import known, schema_version
from holdfast.testing.databases import with_database


async def test_a_clone_has_the_current_schema(engine):
    assert await schema_version(engine.database) == len(known())


async def test_databases_can_be_made_at_the_same_time(holdfast_databases):
    urls = await asyncio.gather(*(holdfast_databases.create() for _ in range(4)))
    assert len(set(urls)) == 4
    await asyncio.gather(*(holdfast_databases.drop(url) for url in urls))


async def test_a_dropped_database_is_gone_even_while_somebody_uses_it(holdfast_databases):
    url = await holdfast_databases.create()
    user = await Database(url).open()
    await holdfast_databases.drop(url)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(url)
    await user.close()


async def test_only_throw_away_databases_are_dropped(holdfast_databases, holdfast_url):
    with pytest.raises(AssertionError):
        await holdfast_databases.drop(with_database(holdfast_url, "postgres"))


def test_a_plain_test_may_use_the_url_too(holdfast_url):
    assert "holdfast_test_" in holdfast_url
