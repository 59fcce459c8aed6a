"""A TCP proxy before PostgreSQL that loses answers: it passes a request on, hears the answer, breaks the connection.

What the server did is done; whoever asked sees an error. That is the one fault a client can never tell from "not done".
It can also fall silent, both ways or one way, without closing anything, and deliver late what was said meanwhile; and
it can be slow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

READY = b"Z\x00\x00\x00\x05"
SYNC = b"S\x00\x00\x00\x04"
REQUESTS, ANSWERS = "requests", "answers"


class Proxy:
    """Cuts a share of the commits and a share of all other requests."""

    def __init__(self, url: str, *, chance: random.Random, commits: float, others: float) -> None:
        self._target = url
        self._chance = chance
        self.commits = commits
        self.others = others
        self.cut_commits = 0
        self.cut_others = 0
        self.delay_seconds_max = 0.0
        """How long a packet takes at most, each way."""
        self._ways = {REQUESTS: asyncio.Event(), ANSWERS: asyncio.Event()}
        self.heal()
        self._tasks: set[asyncio.Task[None]] = set()

    def fall_silent(self, *ways: str) -> None:
        """Hold back what is said from now on; no connection is closed, and new ones get no answer either."""
        for way in ways:
            self._ways[way].clear()

    def heal(self) -> None:
        """Deliver what was held back, and whatever follows."""
        for way in self._ways.values():
            way.set()

    async def _pass(self, way: str) -> None:
        if self.delay_seconds_max:
            await asyncio.sleep(self._chance.uniform(0.0, self.delay_seconds_max))
        await self._ways[way].wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Listen on a free port of the loopback; gives the URL to connect to."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        parts = urlsplit(self._target)
        port = server.sockets[0].getsockname()[1]
        user = parts.username or "postgres"
        try:
            yield f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._target)
        folder = parse_qs(parts.query).get("host", [""])[0]
        if folder.startswith("/"):
            port = parse_qs(parts.query).get("port", ["5432"])[0]
            return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
        return await asyncio.open_connection(parts.hostname, parts.port or 5432)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            upstream_reader, upstream = await self._open()
        except OSError:
            writer.transport.abort()
            return
        state = _State()
        try:
            await asyncio.gather(self._requests(reader, upstream, state), self._answers(upstream_reader, writer, state))
        except (OSError, _Cut):
            pass
        finally:
            # Abort, as a lost network would: the client gets no farewell.
            writer.transport.abort()
            upstream.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, state: _State) -> None:
        while data := await reader.read(65536):
            # Only a request that asks for a closing answer can lose it; others would leave both sides waiting.
            if state.is_started and (data[:1] == b"Q" or SYNC in data[-5:]):
                self._choose(data, state)
            await self._pass(REQUESTS)
            upstream.write(data)
            await upstream.drain()
        raise _Cut

    def _choose(self, data: bytes, state: _State) -> None:
        is_commit = data[:1] == b"Q" and b"COMMIT" in data[:16]
        if self._chance.random() < (self.commits if is_commit else self.others):
            state.is_doomed = True
            if is_commit:
                self.cut_commits += 1
            else:
                self.cut_others += 1

    async def _answers(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, state: _State) -> None:
        while data := await upstream.read(65536):
            if state.is_doomed:
                if READY in data:
                    raise _Cut
                continue
            if READY in data:
                state.is_started = True
            await self._pass(ANSWERS)
            writer.write(data)
            await writer.drain()
        raise _Cut


class _State:
    """Of one connection: past its start-up, and whether its next answer is to be lost."""

    def __init__(self) -> None:
        self.is_started = False
        self.is_doomed = False


class _Cut(Exception):
    """This connection is over."""
