"""Completions that carry datasets, settled one by one beside the worker's exchange.

Moving a million rows takes its time. In a transaction of its own it holds up no other report, and no other task's lock.
What the database did not answer goes the way of every report, which is repeated until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Set

from holdfast.dispatcher.leases import Report, Settled
from holdfast.store.database import TROUBLE

log = logging.getLogger("holdfast.worker")

AT_ONCE_MAX = 4
"""Commits to one dataset wait for one another; they must not take every session while they do."""


class Committing:
    """What is being settled this way. `ended(report)` gets what still has to be reported, or None."""

    def __init__(
        self,
        settle: Callable[[Report], Awaitable[Settled]],
        ended: Callable[[Report | None], None],
        announce: Callable[[Settled], None],
    ) -> None:
        self._settle = settle
        self._ended = ended
        self._announce = announce
        self._reports: dict[int, Report] = {}
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

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

    async def _commit(self, report: Report) -> None:
        left: Report | None = report
        try:
            async with self._room:
                settled = await self._settle(report)
            left = None
            self._announce(settled)
        except TROUBLE as error:
            log.warning("a commit to a dataset was not answered, reporting it again: %s", error)
        finally:
            del self._reports[report.task_id]
            self._ended(left)
