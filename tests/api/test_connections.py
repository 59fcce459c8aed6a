"""A server's connections: answers leave at once, and when it stops whoever is being served gets the answer first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest
from tests.api.conftest import Caller

from holdfast.api.server import serving


@pytest.fixture
async def server(engine):
    """A server, its address, and how to stop it."""
    stack = contextlib.AsyncExitStack()
    url = await stack.enter_async_context(serving(engine))
    yield Caller(url), stack.aclose
    await stack.aclose()


@pytest.fixture
def held_back(monkeypatch):
    """Lists of tasks are answered when the second event is set; the first says that somebody asked."""
    asked, released = asyncio.Event(), asyncio.Event()

    async def wait(*_args, **_options):
        asked.set()
        await released.wait()
        return [], None

    monkeypatch.setattr("holdfast.dispatcher.list_tasks.task_page", wait)
    return asked, released


def accepted(port: int) -> list[socket.socket]:
    """This process's ends of connections to a port of its own."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(int(entry.name)))
            if one.family == socket.AF_INET and one.getsockname()[1] == port and one.getpeername():
                found.append(one)
            else:
                one.close()
    return found


async def test_small_answers_are_not_held_back(server):
    call, _ = server
    with contextlib.closing(call.open()) as connection:
        await asyncio.to_thread(connection.request, "GET", "/healthz")
        await asyncio.to_thread(connection.getresponse)
        [ours] = accepted(connection.port)
        with ours:
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_answer_that_is_under_way_arrives_and_nobody_else_gets_in(server, held_back):
    call, stop = server
    asked, released = held_back
    answer = asyncio.create_task(call.get("/api/v1/tasks"))
    await asked.wait()
    stopping = asyncio.create_task(stop())
    with pytest.raises(ConnectionError):
        while True:
            await call.get("/healthz")
    assert not stopping.done() and not answer.done()
    released.set()
    assert (await answer).status == 200
    await stopping


async def test_who_holds_a_connection_is_let_go(server):
    call, stop = server
    connection = call.open()

    def ask():
        connection.request("GET", "/healthz")
        return connection.getresponse().read()

    assert b"ok" in await asyncio.to_thread(ask)
    await stop()
    assert connection.sock.recv(1) == b""
    connection.close()


async def test_who_never_ends_is_cut_off(server, held_back, monkeypatch):
    monkeypatch.setattr("holdfast.api.server.SHUTDOWN_SECONDS", 0.05)
    call, stop = server
    asked, _ = held_back
    answer = asyncio.create_task(call.get("/api/v1/tasks"))
    await asked.wait()
    await stop()
    assert (await answer).status == 500
