"""The HTTP API beside other work of the same process, in a thread with its own event loop and its own engine.

For `holdfast dev`: it is a convenience there, so what keeps it from starting is said and nothing more.
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
        """The URL. A `HoldfastError` says why there is none: the extra is not installed, the address is taken …"""
        self._thread.start()
        return self._started.result()

    def close(self) -> None:
        # It may have ended by itself, and its loop with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=15)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread, whoever waits for it must hear
            if self._started.done():
                logging.getLogger("holdfast").error("the HTTP API ended: %r", error)
            else:
                self._started.set_exception(_told(error))
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


def _told(error: BaseException) -> HoldfastError:
    if isinstance(error, HoldfastError):
        return error
    told = Unavailable(f"It could not start: {error!r}.", code="http_failed", advice="See `holdfast server`.")
    told.__cause__ = error
    return told
