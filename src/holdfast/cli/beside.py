"""The HTTP API beside other work of the same process, in a thread with its own event loop and its own engine.

For `holdfast dev`: it is a convenience there, so what keeps it from starting is said and nothing more.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.settings import Settings

SESSIONS_MAX = 8


class ServerBeside:
    """`start` gives the URL, or why there is none; `close` ends it."""

    def __init__(self, database_url: str, settings: Settings) -> None:
        self._database_url = database_url
        self._settings = settings
        self._started: Future[str] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-http", daemon=True)

    def start(self) -> str:
        """The URL. `Unavailable` if the extra is not installed or the address is taken."""
        self._thread.start()
        return self._started.result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=15)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except HoldfastError as error:
            if not self._started.done():
                self._started.set_exception(error)
        finally:
            self._stop.set()

    async def _serve(self) -> None:
        from holdfast.cli.server import require_http
        from holdfast.dispatcher.engine import Engine

        require_http(self._settings)
        from holdfast.api.server import serving

        async with (
            Engine(self._database_url, self._settings, sessions_max=SESSIONS_MAX) as engine,
            serving(engine) as url,
        ):
            self._started.set_result(url)
            await self._stop.wait()
