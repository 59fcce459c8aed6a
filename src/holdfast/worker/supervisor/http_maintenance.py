"""The supervisor's connection to a server: retires worker processes that died. The server runs the maintenance loops.

It runs in a thread with its own event loop, like `MaintenanceThread`. Each retirement is retried until the server
accepts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.protocol.worker import LeaveRequest
from holdfast.settings.settings import Settings
from holdfast.store.outage import Outage
from holdfast.worker.transport.http_connection import HttpConnection, Server

REPEAT_SECONDS_FIRST, REPEAT_SECONDS_MAX = 0.05, 2.0
ANSWER_SECONDS_MAX = 10.0


class HttpMaintenance:
    """Retires dead workers over HTTP. Its methods are called from the supervising thread."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._server = Server.of(url, settings)
        self._outage = Outage("the server")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-repairs", daemon=True)
        self._retirements: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._thread.start()

    def retire_worker(self, worker_id: int, *, was_asked_to_stop: bool) -> None:
        """Requeue the tasks of a dead worker now, without waiting for its leases to expire."""
        self._loop.call_soon_threadsafe(self._begin_retirement, worker_id, was_asked_to_stop)

    def close(self, *, seconds_max: float) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._close(seconds_max), self._loop)
        with contextlib.suppress(HoldfastError):
            closing.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def _begin_retirement(self, worker_id: int, was_asked_to_stop: bool) -> None:
        retirement = asyncio.create_task(
            self._retire_worker(worker_id, was_asked_to_stop), name=f"holdfast-retire-{worker_id}"
        )
        self._retirements.add(retirement)
        retirement.add_done_callback(self._retirements.discard)

    async def _retire_worker(self, worker_id: int, was_asked_to_stop: bool) -> None:
        connection, pause = HttpConnection(self._server), REPEAT_SECONDS_FIRST
        while True:
            try:
                body = LeaveRequest(str(worker_id), stopped=was_asked_to_stop)
                await connection.post("/internal/leave", body, dict[str, Any], seconds_max=ANSWER_SECONDS_MAX)
                connection.drop()
                self._outage.answered("retiring workers")
                return
            except HoldfastError as error:
                self._outage.failed("retiring workers", error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, REPEAT_SECONDS_MAX)

    async def _close(self, seconds_max: float) -> None:
        if self._retirements:
            await asyncio.wait(self._retirements, timeout=seconds_max)
        for task in tuple(self._retirements):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
