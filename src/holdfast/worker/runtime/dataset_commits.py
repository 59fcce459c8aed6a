"""Settling of completions that carry dataset rows, one by one and concurrently with the exchanges.

Moving a million rows takes long. In its own transaction, a commit delays no other report and no other task's lock. A
commit without a response is retried here and not with the other reports, which would wait for it. Meanwhile the
heartbeat keeps the lease; if the lease is lost all the same, the response says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Set
from typing import TYPE_CHECKING

from holdfast.engine.leases import Report, Settled
from holdfast.store.database import ANY_DB_ERROR, STATEMENT_SECONDS_MAX, TRANSIENT

if TYPE_CHECKING:
    from holdfast.worker.runtime.state import WorkerState

log = logging.getLogger("holdfast.worker")

AT_ONCE_MAX = 4
"""Commits to one dataset wait for each other; this limit keeps them from taking every database session."""
ANSWER_SECONDS_MAX = 2.0 * STATEMENT_SECONDS_MAX
"""Time limit for one commit. Without it, a connection that broke unnoticed would keep the lease forever."""
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 0.1, 2.0
ERRORS_MAX = 10
"""How many errors that may be permanent (a dropped table) a commit survives before it is given up."""


class DatasetCommits:
    """The commits under way. The worker is woken when a commit ends, and when it has to be retried."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._reports: dict[int, Report] = {}
        self._free = asyncio.Semaphore(AT_ONCE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self.unanswered_count = 0
        """How often in a row a commit got no response."""

    def __len__(self) -> int:
        return len(self._reports)

    @property
    def task_ids(self) -> Set[int]:
        return self._reports.keys()

    def reports(self) -> list[Report]:
        return list(self._reports.values())

    def start(self, report: Report) -> None:
        self._reports[report.task_id] = report
        task = asyncio.create_task(self._commit(report), name="holdfast-commit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel commits when the worker leaves; the reaper decides about them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _commit(self, report: Report) -> None:
        try:
            self._state.record_settled(await self._settle(report))
        except Exception:
            # The lease expires and the reaper decides, as for every report that cannot be settled.
            log.exception("attempt %d of task %d cannot be committed", report.attempt, report.task_id)
        finally:
            del self._reports[report.task_id]
            self._state.signal.wake()

    async def _settle(self, report: Report) -> Settled:
        """Settle one report, repeating the request until it is answered."""
        pause_seconds, errors_left = PAUSE_SECONDS_FIRST, ERRORS_MAX
        while True:
            try:
                async with self._free, asyncio.timeout(ANSWER_SECONDS_MAX):
                    settled = await self._state.transport.settle_alone(report)
            except ANY_DB_ERROR as error:
                errors_left -= not isinstance(error, TRANSIENT)
                if not errors_left:
                    raise
                cause = str(error) or type(error).__name__
                log.warning("a commit to a dataset was not answered, repeating it: %s", cause)
            else:
                self.unanswered_count = 0
                return settled
            self.unanswered_count += 1
            self._state.signal.wake()
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.5))
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
