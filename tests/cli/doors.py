"""A server in a thread of its own, so that commands that run in this process can ask it over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.engine.engine import Engine
from holdfast.server.app import serving
from holdfast.settings.settings import Settings


@contextmanager
def a_server(database_url: str, port: int = 0) -> Iterator[str]:
    """Its URL, while the block runs."""
    ready, address = threading.Event(), []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with Engine(database_url, Settings(env="local", port=port)) as engine, serving(engine) as url:
            address.append(url)
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=work, name="holdfast-test-server")
    thread.start()
    try:
        assert ready.wait(30) and address, "the server did not start"
        yield address[0]
    finally:
        if address:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
