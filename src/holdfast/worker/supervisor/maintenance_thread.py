"""The supervisor's database thread: runs the maintenance loops and retires worker processes that died.

It has its own event loop, so that a slow database cannot block the thread that supervises the processes. It continues
through database restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks.reap import REAP_BATCH
from holdfast.engine.maintenance.loops import Loops
from holdfast.settings.settings import Settings
from holdfast.store.database import ANY_DB_ERROR
from holdfast.store.durability import require_durable
from holdfast.store.outage import Outage
from holdfast.store.sql.workers import workers as workers_sql
from holdfast.worker.runtime.startup_retry import START_SECONDS_MAX, retry_until_available

log = logging.getLogger("holdfast.parent")

T = TypeVar("T")
BackgroundLoop = Callable[[Engine], Coroutine[Any, Any, None]]
"""Another loop over the same database."""

REPEAT_SECONDS_FIRST = 0.05
REPEAT_SECONDS_MAX = 2.0


class MaintenanceThread:
    """Runs the maintenance loops and retires dead workers. Its methods are called from the supervising thread."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        migrates: bool,
        loops: bool,
        background_loop: BackgroundLoop | None = None,
    ) -> None:
        self._settings = settings
        self._new_engine = partial(Engine, url, settings, sessions_max=4, migrates=migrates)
        self._engine = self._new_engine()
        self._has_loops = loops
        self._background_loop = background_loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-repairs", daemon=True)
        self._retirements: set[asyncio.Task[None]] = set()
        self._loops_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open the database, waiting for one that is away or full.

        Permanent errors are raised here, before any process is started.
        """
        self._thread.start()
        opening = asyncio.run_coroutine_threadsafe(
            retry_until_available(self._open, seconds_max=START_SECONDS_MAX), self._loop
        )
        try:
            opening.result()
        except BaseException:
            opening.cancel()
            self._end_thread()
            raise

    def retire_worker(self, worker_id: int, *, was_asked_to_stop: bool) -> None:
        """Requeue the tasks of a dead worker now, without waiting for its leases to expire."""
        self._loop.call_soon_threadsafe(self._begin_retirement, worker_id, was_asked_to_stop)

    def close(self, *, seconds_max: float) -> None:
        """Finish pending retirements within the time, then close the database."""
        closing = asyncio.run_coroutine_threadsafe(self._close(seconds_max), self._loop)
        with contextlib.suppress(*ANY_DB_ERROR):
            closing.result()
        self._end_thread()

    async def _open(self) -> None:
        # Each attempt needs a new engine: closed connections stay closed.
        self._engine = self._new_engine()
        await self._engine.__aenter__()
        try:
            await require_durable(self._engine.database, is_unsafe=self._settings.unsafe)
        except BaseException:
            await self._engine.__aexit__(None, None, None)
            raise
        if self._has_loops:
            self._loops_task = asyncio.create_task(self._repair(), name="holdfast-loops")

    async def _repair(self) -> None:
        """Run the maintenance loops forever, restarting them after any error: without them, lost work stays lost."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(Loops(self._engine).run())
                    if self._background_loop is not None:
                        group.create_task(self._background_loop(self._engine))
            except Exception:
                log.exception("the maintenance loops failed, starting them again")
            await asyncio.sleep(REPEAT_SECONDS_MAX)

    def _begin_retirement(self, worker_id: int, was_asked_to_stop: bool) -> None:
        retirement = asyncio.create_task(
            self._retire_worker(worker_id, was_asked_to_stop), name=f"holdfast-retire-{worker_id}"
        )
        self._retirements.add(retirement)
        retirement.add_done_callback(self._retirements.discard)

    async def _retire_worker(self, worker_id: int, was_asked_to_stop: bool) -> None:
        database, loops = self._engine.database, Loops(self._engine)
        await _until_done(
            lambda: workers_sql.retire_worker(database, worker_id, was_asked_to_stop),
            database.outage,
            f"retiring worker {worker_id}",
        )
        while await _until_done(loops.retire_worker, database.outage, "reaping") == 0.0:
            log.info("more than %s leases to take back", REAP_BATCH)

    async def _close(self, seconds_max: float) -> None:
        if self._retirements:
            await asyncio.wait(self._retirements, timeout=seconds_max)
        for task in (*self._retirements, *filter(None, [self._loops_task])):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._engine.__aexit__(None, None, None)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()


async def _until_done(step: Callable[[], Awaitable[T]], outage: Outage, part: str) -> T:
    """Retry a repeatable step until the database executes it."""
    pause = REPEAT_SECONDS_FIRST
    while True:
        try:
            done = await step()
        except ANY_DB_ERROR as error:
            outage.failed(part, error)
        else:
            outage.answered(part)
            return done
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, REPEAT_SECONDS_MAX)
