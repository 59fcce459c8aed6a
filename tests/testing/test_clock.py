"""Time passes at a test's command, for every session, and only in its database."""

from __future__ import annotations

import pytest

from holdfast.errors import Invalid

OFFSET = "select extract(epoch from holdfast.instant() - statement_timestamp())::float8"


async def test_a_new_database_has_its_own_time(engine):
    assert await engine.database.fetchval(OFFSET) == 0


async def test_advancing_adds_up(engine, clock):
    await clock.advance("2m")
    await clock.advance(seconds=0.5)
    assert await engine.database.fetchval(OFFSET) == 120.5


async def test_a_session_that_prepared_a_statement_before_sees_the_new_time(engine, clock):
    session = await engine.database.connect()
    assert await session.fetchval(OFFSET) == 0
    await clock.advance("1h")
    assert await session.fetchval(OFFSET) == 3600
    await session.close()


async def test_the_clock_can_be_set_back(engine, clock):
    await clock.step(-3600)
    assert await engine.database.fetchval(OFFSET) == -3600


async def test_time_cannot_be_advanced_backwards(clock):
    with pytest.raises(Invalid):
        await clock.advance("-2m")


async def test_resetting_gives_the_time_back(engine, clock):
    await clock.advance("2m")
    await clock.reset()
    assert await engine.database.fetchval(OFFSET) == 0


async def test_a_frozen_clock_moves_only_when_it_is_told_to(engine, clock):
    await clock.freeze()
    first = await engine.database.fetchval("select holdfast.instant()")
    await clock.advance(seconds=2)
    assert (await engine.database.fetchval("select holdfast.instant()") - first).total_seconds() == 2
