"""The HTTP API in a thread of another process, with its own event loop and its own engine.

Used by `holdfast dev`, where the API is optional: an error at its start is reported, and the rest continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, Unavailable

if TYPE_CHECKING:
    from holdfast.settings.settings import Settings

SESSIONS_MAX = 8


class ServerThread:
    """The HTTP API in a thread. `start` returns the URL or raises; `close` ends it."""

    def __init__(self, database_url: str, settings: Settings) -> None:
        self._database_url = database_url
        self._settings = settings
        self._started: Future[str] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-http", daemon=True)

    def start(self) -> str:
        """Start the API and return its URL; raise `HoldfastError` if it cannot start (missing extra, port in use)."""
        self._thread.start()
        return self._started.result()

    def close(self) -> None:
        # The thread may have ended by itself, and closed its loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=15)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread, the waiting caller must get the error
            if self._started.done():
                logging.getLogger("holdfast").error("the HTTP API ended: %r", error)
            else:
                self._started.set_exception(_startup_error(error))
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        from holdfast.cli.commands.server import require_http
        from holdfast.engine.engine import Engine

        require_http(self._settings)
        from holdfast.server.app import serving

        async with (
            Engine(self._database_url, self._settings, sessions_max=SESSIONS_MAX) as engine,
            serving(engine) as url,
        ):
            self._started.set_result(url)
            await self._stop.wait()


def _startup_error(error: BaseException) -> HoldfastError:
    if isinstance(error, HoldfastError):
        return error
    told = Unavailable(f"It could not start: {error!r}.", code="http_failed", advice="See `holdfast server`.")
    told.__cause__ = error
    return told
