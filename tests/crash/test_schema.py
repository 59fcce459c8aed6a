"""The sweep over what changes the schema: migrating, and beginning and dropping blocks of ids."""

from __future__ import annotations

from itertools import count

import pytest
from tests.crash import acts
from tests.crash.repair import drain, free_of_victims

from holdfast.core.retry import RetryPolicy
from holdfast.dispatcher.enqueue import Order, enqueue
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import AWAY
from holdfast.store.migrate import known, migrate, schema_version
from holdfast.testing.crash import Fault, Mode, Stage

pytestmark = pytest.mark.crash


async def strike(act, mode, k, url, given, victims):
    if mode.is_deadly:
        return victims.run(act, url=url, mode=mode, k=k, given=given).fired
    fault = Fault(mode, k)
    try:
        await getattr(acts, act)(Stage(url=url, tap=fault, given=given, say=lambda _word: None))
    except AWAY:
        assert fault.fired
    return fault.fired


@pytest.mark.parametrize("mode", Mode)
async def test_a_migration_is_there_or_not_there(mode, engine, victims, record_property):
    for k in count(1):
        async with engine.database.session() as session:
            await session.execute("drop schema if exists holdfast cascade")
        fired = await strike("migrate_all", mode, k, engine.database.url, {}, victims)
        await free_of_victims(engine)
        assert await schema_version(engine.database) <= len(known())
        await migrate(engine.database)
        assert await schema_version(engine.database) == len(known())
        assert not await migrate(engine.database)
        if not fired:
            break
    record_property("strikes", k - 1)
    assert k > 5 * len(known())


@pytest.mark.parametrize("mode", Mode)
async def test_work_is_accepted_whatever_happened_to_retention(mode, engine, clock, victims, record_property):
    """Right after the crash, before any other pass: an id handed out must have a place to be stored in."""
    order = Order(tenant_id=DEFAULT_TENANT_ID, queue="default", action="shop.charge", policy=RetryPolicy())
    for k in count(1):
        await enqueue(engine.database, engine.catalog, order, [b'{"number": 1}'])
        await drain(engine, clock)
        await clock.advance("2d")
        fired = await strike("retain", mode, k, engine.database.url, {"days": 1.0}, victims)
        await free_of_victims(engine)
        for _ in range(2):
            await enqueue(engine.database, engine.catalog, order, [b'{"number": 2}'])
        await drain(engine, clock)
        if not fired:
            break
    record_property("strikes", k - 1)
    assert k > 7
    assert await engine.database.fetchval("select count(*) from holdfast.block") > 1
