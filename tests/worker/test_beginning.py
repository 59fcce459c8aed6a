"""What is waited for when a worker starts, and what is told at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import asyncpg
import pytest
from tests.worker.servers import LossyWay

from holdfast.errors import Forbidden, Unauthorized, Unavailable
from holdfast.settings.settings import Settings
from holdfast.store.database import Database
from holdfast.worker.runtime.startup_retry import retry_until_available
from holdfast.worker.supervisor import supervisor
from holdfast.worker.transport.http import fetch_terms


class Refusing:
    """Raises what it is given, one after the other, and then answers."""

    def __init__(self, *errors):
        self.errors = list(errors)

    async def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        return "here"


def caused(error, cause):
    error.__cause__ = cause
    return error


def away(cause=None, **fields):
    return caused(Unavailable("It does not answer.", code="server_unreachable", **fields), cause)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("holdfast.worker.runtime.startup_retry.PAUSE_SECONDS_FIRST", 0.001)


@pytest.mark.parametrize(
    "error",
    [
        away(ConnectionRefusedError()),
        away(EOFError()),
        away(socket.gaierror(socket.EAI_AGAIN, "try again")),
        away(),
        away(asyncpg.CannotConnectNowError("the database system is starting up")),
        away(asyncpg.TooManyConnectionsError("sorry, too many clients already")),
        TimeoutError(),
    ],
)
async def test_who_is_away_is_asked_again(error):
    assert await retry_until_available(Refusing(error, error), seconds_max=60) == "here"


@pytest.mark.parametrize(
    "error",
    [
        away(socket.gaierror(socket.EAI_NONAME, "unknown name")),
        away(ValueError("this is not HTTP")),
        away(is_lasting=True),
        Unavailable("The schema is of another version.", code="schema_outdated"),
        away(asyncpg.InvalidPasswordError("no")),
        away(asyncpg.InvalidCatalogNameError("no such database")),
        Unauthorized("This token opens nothing."),
        Forbidden("Not for workers."),
    ],
)
async def test_a_mistake_is_told_at_once(error):
    with pytest.raises(type(error)):
        await retry_until_available(Refusing(error), seconds_max=60)


async def test_each_cause_is_logged_once(caplog):
    full = Unavailable("It is full.", code="database_unreachable")
    assert await retry_until_available(Refusing(away(), away(), full, full), seconds_max=60) == "here"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(".")[0] for line in said] == ["It does not answer", "It is full"]


async def test_waiting_ends_with_its_time_and_with_a_stop():
    for options in ({"seconds_max": 0}, {"seconds_max": 60, "is_over": lambda: True}):
        with pytest.raises(Unavailable):
            await retry_until_available(Refusing(away()), **options)


@contextlib.asynccontextmanager
async def answering(answer):
    """Somebody at an address who says the same to everybody."""

    async def on_connection(reader, writer):
        with contextlib.suppress(EOFError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(on_connection, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "is_lasting"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", True),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", True),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>", False),
        (b"", False),
    ],
)
async def test_somebody_else_at_the_address_is_no_server_to_wait_for(answer, is_lasting):
    tries = []

    async def ask():
        tries.append(1)
        return await fetch_terms(url, Settings(env="local"))

    async with answering(answer) as url:
        with pytest.raises(Unavailable):
            await retry_until_available(ask, seconds_max=0.05)
    assert (len(tries) == 1) == is_lasting


async def test_a_database_that_is_not_there_is_told_at_once(holdfast_url):
    nowhere = holdfast_url.replace("/holdfast_test_", "/nobody_made_")
    with pytest.raises(Unavailable, match="does not exist"):
        await retry_until_available(Database(nowhere).open, seconds_max=60)


async def test_workers_that_start_while_their_server_is_away_wait_for_it(http_server, times):
    def begin(url):
        with supervisor._open_maintenance(Settings(env="local", url=url), False, None) as (_, settings, _repairs):
            return settings.worker.lease_seconds

    answers = iter([True])
    async with LossyWay(http_server().url, lambda _path: next(answers, False)) as lossy:
        assert await asyncio.to_thread(begin, lossy.url) == times["lease_seconds"]
    assert lossy.lost == ["/internal/terms"]
