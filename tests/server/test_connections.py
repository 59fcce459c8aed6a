"""A server's connections: answers leave at once, and when it stops whoever is being served gets the answer first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.server.conftest import Caller

from holdfast.server.app import serving
from holdfast.server.connection import let_go


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

    monkeypatch.setattr("holdfast.engine.queries.tasks.task_page", wait)
    return asked, released


def accepted(port: int) -> list[socket.socket]:
    """This process's ends of connections to a port of its own."""
    found: dict[str, socket.socket] = {}
    for entry in Path("/proc/self/fd").iterdir():
        # Sockets alone, and none is left behind: a second hold on a pipe or a lock would keep others waiting for ever.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            name = entry.readlink().name
            if name.startswith("socket:") and name not in found:
                one = stack.enter_context(socket.socket(fileno=os.dup(int(entry.name))))
                if one.family == socket.AF_INET and one.getsockname()[1] == port and one.getpeername():
                    stack.pop_all()
                    found[name] = one
    return list(found.values())


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
    monkeypatch.setattr("holdfast.server.app.SHUTDOWN_SECONDS", 0.05)
    call, stop = server
    asked, _ = held_back
    answer = asyncio.create_task(call.get("/api/v1/tasks"))
    await asked.wait()
    await stop()
    assert (await answer).status == 500


WHOLE = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


def asked(line: socket.socket) -> None:
    """Ask and hear the whole answer, which keeps the connection."""
    line.sendall(WHOLE)
    told = b""
    while not told.endswith(b'{"status":"ok"}'):
        part = line.recv(65536)
        assert part, "the server hung up"
        told += part


def connected(call) -> socket.socket:
    place = urlsplit(call.url)
    return socket.create_connection((place.hostname, place.port), timeout=10)


def heard(line: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := line.recv(65536):
            parts.append(part)
    return b"".join(parts)


async def test_who_sends_no_request_is_hung_up_on_and_who_rests_between_two_is_not(server, monkeypatch):
    call, _ = server
    with contextlib.ExitStack() as stack:
        resting, *slow = [stack.enter_context(connected(call)) for _ in range(6)]
        for line in (resting, slow[0]):
            await asyncio.to_thread(asked, line)
        for line, begun in zip(slow, (b"\r\n", b"", b"\r\n", b"GET /heal", WHOLE[:-2]), strict=True):
            await asyncio.to_thread(line.sendall, begun)
        monkeypatch.setattr("holdfast.server.connection.HEAD_SECONDS", 0.0)
        for line in slow:
            assert await asyncio.to_thread(heard, line) == b""
        await asyncio.to_thread(asked, resting)


async def test_a_head_without_end_is_refused(server):
    call, _ = server
    start, large = b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"a" * 70_000
    for head in (start + b"x: " + large, b"GET /" + large, start + (b"x: " + large[:1000] + b"\r\n") * 70 + b"\r\n"):
        with connected(call) as line:
            await asyncio.to_thread(line.sendall, head)
            answer = await asyncio.to_thread(heard, line)
        assert answer.startswith(b"HTTP/1.1 431") and b'"code":"head_too_large"' in answer
    assert (await call.get("/healthz", x_large="a" * 60_000)).status == 200


async def test_a_body_may_be_larger_than_a_head(server):
    call, _ = server
    answer = await call.post("/internal/exchange", b" " * 300_000 + b"{}")
    assert (answer.status, answer.json["code"]) == (400, "invalid_body")


async def test_what_is_no_request_is_a_problem_too(server):
    call, _ = server
    with connected(call) as line:
        await asyncio.to_thread(line.sendall, b"\x16\x03\x01 hello\r\n\r\n")
        answer = await asyncio.to_thread(heard, line)
    assert answer.startswith(b"HTTP/1.1 400") and b'"code":"invalid_http"' in answer


async def test_who_reads_nothing_of_an_answer_is_hung_up_on():
    class Line:
        waits_since = 0.0

        def __init__(self, unread_since: float) -> None:
            self.unread_since, self.transport, self.is_open = unread_since, self, True

        def abort(self) -> None:
            self.is_open = False

    reading, slow, stuck = Line(0.0), Line(900.0), Line(800.0)
    let_go([reading, slow, stuck], 1000.0, is_crowded=False)
    assert [one.is_open for one in (reading, slow, stuck)] == [True, True, False]
