"""Time passes at a test's command, for every session, and only in its database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import holdfast as hf
from holdfast.errors import Invalid
from holdfast.testing.idle import run_until_idle

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


class Noon:
    def now(self) -> datetime:
        return datetime(2030, 1, 2, 12, tzinfo=UTC)


def an_app(url, **options) -> hf.App:
    app = hf.App("shop", settings=hf.Settings(url=url), **options)

    @app.action(name="tell")
    async def tell(ctx: hf.Context) -> str:
        return ctx.now().isoformat()

    @app.action(isolation="process")
    def tell_plainly(ctx: hf.Context) -> str:
        return ctx.now().isoformat()

    return app


async def told_by_idle(app) -> list[datetime]:
    """The time as actions are told it by the workers of the test kit."""
    async with app.client() as client:
        tasks = [await client.enqueue(name) for name in app.actions]
        await run_until_idle(app, app.settings.url)
        return [datetime.fromisoformat(await task.result(5)) for task in tasks]


async def told_by_hand(app) -> list[datetime]:
    async with app.client() as client, app.processor() as processor:
        tasks = [await client.enqueue(name) for name in app.actions]
        for _ in tasks:
            await processor.process_once()
        return [datetime.fromisoformat(await task.result(5)) for task in tasks]


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("told", [told_by_idle, told_by_hand])
async def test_actions_are_told_the_time_that_a_test_moved(clock, holdfast_url, told):
    app = an_app(holdfast_url)
    await clock.advance("2h")
    for at in await told(app):
        assert abs(at - (datetime.now(UTC) + timedelta(hours=2))) < timedelta(minutes=1)
    await clock.freeze()
    await clock.step(-3600)
    assert await told(app) == [clock.now()] * 2
    await clock.reset()
    for at in await told(app):
        assert abs(at - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("told", [told_by_idle, told_by_hand])
async def test_an_app_with_a_clock_of_its_own_keeps_to_it(clock, holdfast_url, told):
    await clock.advance("2h")
    assert await told(an_app(holdfast_url, clock=Noon())) == [Noon().now()] * 2


async def test_the_clock_tells_the_databases_time(engine, clock):
    await clock.freeze()
    await clock.advance("90s")
    assert clock.now() == await engine.database.fetchval("select holdfast.instant()")
