"""A server in a thread of its own, as `holdfast server` runs it; and a way there that loses answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from urllib.parse import urlsplit

from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.server.app import serving
from holdfast.settings.settings import Settings


class HttpServer:
    """`start`, `stop` and `start` again, at the same address. With the maintenance loops, if wanted."""

    def __init__(self, database_url: str, settings: Settings, *, loops: bool) -> None:
        self._database_url = database_url
        self._settings = replace(settings, env="local", host="127.0.0.1", port=0)
        self._has_loops = loops
        self._thread: threading.Thread | None = None
        self.url = ""

    def start(self) -> str:
        started: Future[str] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        self._thread.start()
        self.url = started.result(30)
        self._settings = replace(self._settings, port=urlsplit(self.url).port or 0)
        return self.url

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None

    async def _serve(self, started: Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with Engine(self._database_url, self._settings, sessions_max=20) as engine, serving(engine) as url:
                loops = asyncio.create_task(Loops(engine).run()) if self._has_loops else None
                started.set_result(url)
                await self._stop.wait()
                if loops is not None:
                    loops.cancel()
                    await asyncio.gather(loops, return_exceptions=True)
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise


class LossyWay:
    """A proxy that passes requests on and, when `loses` says so, closes the connection instead of answering.

    The server acted; the worker does not know. `loses` gets the path of the request; `holds` gets path and body before
    they are passed on, and takes its time.
    """

    def __init__(
        self,
        target: str,
        loses: Callable[[str], bool],
        holds: Callable[[str, bytes], Awaitable[None]] | None = None,
    ) -> None:
        self._target = urlsplit(target)
        self._loses = loses
        self._holds = holds
        self.lost: list[str] = []

    async def __aenter__(self) -> LossyWay:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(self._target.hostname, self._target.port)
            try:
                while True:
                    head, body = await message(reader)
                    path = head.split(b" ", 2)[1].decode()
                    if self._holds is not None:
                        await self._holds(path, body)
                    there[1].write(head + body)
                    answer = b"".join(await message(there[0]))
                    if self._loses(path):
                        self.lost.append(path)
                        return
                    writer.write(answer)
                    await writer.drain()
            finally:
                there[1].close()
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()


async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head, await reader.readexactly(length)
