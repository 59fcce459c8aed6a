"""A receiver on loopback: keeps what it was asked, and answers as the test says, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Speak = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """`answers` are used one after the other, the last one for ever: a status, or a way to speak."""

    answers: list[int | Speak] = field(default_factory=lambda: [204])
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    on_asked: Callable[[Asked], Awaitable[None]] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        asked = Asked(method, path, headers, body)
        self.asked.append(asked)
        if self.on_asked is not None:
            await self.on_asked(asked)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, int):
            writer.write(b"HTTP/1.1 %d Fine\r\ncontent-length: 0\r\n\r\n" % answer)
            await writer.drain()
            return True
        await answer(writer)
        return False


@asynccontextmanager
async def receiving(*answers: int | Speak) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers) or [204])
    server = await asyncio.start_server(receiver._serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def saying(data: bytes) -> Speak:
    """Answer with these bytes, and hang up."""

    async def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return speak


async def silent(_writer: asyncio.StreamWriter) -> None:
    """Answer nothing, and do not hang up."""
    await asyncio.Event().wait()


def endless(first: bytes, again: bytes) -> Speak:
    """Answer without an end."""

    async def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(again)
            await writer.drain()

    return speak
