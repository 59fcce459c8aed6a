"""The time of day that a worker and its actions go by, over either line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import holdfast as hf
from holdfast.errors import TaskFailed

NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)


class Told:
    def __init__(self, answer) -> None:
        self._answer = answer

    def now(self):
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class RateLimitError(Exception):
    """What a client of HTTP raises: with the date until which it should be left alone."""

    def __init__(self, until: str) -> None:
        super().__init__("busy")
        self.retry_after = until


def app_at(clock) -> hf.App:
    app = hf.App("local", clock=clock)

    @app.action(max_retries=0)
    async def tell(ctx: hf.Context) -> str:
        return ctx.now().isoformat()

    @app.action(max_retries=0)
    def tell_plainly(ctx: hf.Context) -> str:
        return ctx.now().isoformat()

    @app.action(max_retries=3)
    async def ask(until: str) -> None:
        raise RateLimitError(until)

    return app


async def test_actions_of_either_kind_are_told_the_time_of_their_apps_clock(running_worker, client_of):
    app, other = app_at(Told(NOON)), hf.App("other", clock=Told(NOON + timedelta(days=1)))

    @other.action(name="tell")
    async def told(ctx: hf.Context) -> str:
        return ctx.now().isoformat()

    app.include(other)
    async with client_of(app) as client, running_worker(app=app):
        names = ("local.tell", "local.tell_plainly", "other.tell")
        said = [await (await client.enqueue(name)).result(20) for name in names]
    assert said == [NOON.isoformat(), NOON.isoformat(), (NOON + timedelta(days=1)).isoformat()]


async def test_a_date_to_retry_after_is_read_by_it(running_worker, client_of, engine, eventually):
    app = app_at(Told(NOON))
    async with client_of(app) as client, running_worker(app=app):
        await client.enqueue("local.ask", until="Wed, 02 Jan 2030 12:30:00 GMT")
        assert 1790 < await eventually(lambda: seconds_until_due(engine)) < 1810


@pytest.mark.parametrize("wrong", [OSError("no time"), SystemExit("no time"), NOON.replace(tzinfo=None)], ids=repr)
async def test_a_clock_that_fails_fails_the_attempt_that_asked_and_no_worker(running_worker, client_of, wrong):
    app = app_at(Told(wrong))

    @app.action
    async def fine() -> str:
        return "fine"

    async with client_of(app) as client, running_worker(app=app):
        expected = "no time" if isinstance(wrong, BaseException) else "not a time with a time zone"
        for name in ("local.tell", "local.tell_plainly"):
            with pytest.raises(TaskFailed, match=expected):
                await (await client.enqueue(name)).result(20)
        assert await (await client.enqueue("local.fine")).result(20) == "fine"


async def test_a_clock_that_fails_does_not_hide_what_the_action_raised(running_worker, client_of, engine):
    app = hf.App("local", clock=Told(SystemExit("no time")))

    @app.action(max_retries=0)
    async def ask() -> None:
        raise RateLimitError("Wed, 02 Jan 2030 12:30:00 GMT")

    async with client_of(app) as client, running_worker(app=app):
        with pytest.raises(TaskFailed, match="busy"):
            await (await client.enqueue("local.ask")).result(20)
    assert "RateLimitError" in await engine.database.fetchval("select type from holdfast.failure")


async def seconds_until_due(engine):
    return await engine.database.fetchval(
        "select extract(epoch from due_at - holdfast.instant())::float8 from holdfast.live where state = 'w'"
    )
