"""Waiting for tasks to end: one listener and one batched poll for all waits of a client.

A flag on the live row asks the settling transaction to notify. A notification may be lost, so all awaited tasks are
also polled, in one statement, at a growing interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.errors import NotFound, TaskFailed, Unavailable
from holdfast.store.database import ANY_DB_ERROR, TRANSIENT, Database
from holdfast.store.sql.tasks import results as results_sql
from holdfast.wakeups.listener import Listener
from holdfast.wakeups.notifier import DONE_CHANNEL

POLL_SECONDS_FIRST = 0.25
POLL_SECONDS_MAX = 2.0


class TaskEnd(msgspec.Struct, frozen=True):
    """How a task ended."""

    task_id: int
    state: str
    output: bytes | None
    code: str | None
    type: str | None
    message: str | None
    sentence: str | None


class Results:
    """Creates futures for task ids and resolves them; pending ones fail when it closes."""

    def __init__(self, database: Database, tenant_id: int) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._waiting: dict[int, set[asyncio.Future[TaskEnd]]] = {}
        self._listener: Listener | None = None
        self._watch: asyncio.Task[None] | None = None
        self._check_now = asyncio.Event()
        self._is_closed = False

    async def wait(self, task_id: int) -> TaskEnd:
        """Wait until the task has ended; raise `NotFound` if it does not exist."""
        if self._listener is None:
            self._listener = Listener(self._database, DONE_CHANNEL, self._on_notification)
            await self._listener.start()
        if self._is_closed:
            await self._listener.close()
            raise _closed()
        future: asyncio.Future[TaskEnd] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, set()).add(future)
        try:
            live = await results_sql.await_tasks(self._database, [task_id], self._tenant_id)
            if not live:
                await self._check([task_id])
                if not future.done():
                    await self.require(task_id)
            if not future.done() and (self._watch is None or self._watch.done()):
                self._watch = asyncio.create_task(self._poll(), name="holdfast-results")
            return await future
        finally:
            self._waiting[task_id].discard(future)
            if not self._waiting[task_id]:
                del self._waiting[task_id]
            if future.done() and not future.cancelled():
                # Mark the exception as retrieved, or asyncio logs it as never retrieved if another error is raised as
                # well.
                future.exception()

    async def require(self, task_id: int) -> None:
        """Raise `NotFound` if there is no such task; a wait that timed out before its first query did not
        check this.
        """
        if not await results_sql.which_exist(self._database, [task_id], self._tenant_id):
            raise NotFound(f"There is no task {task_id}.", code="task_not_found")

    async def close(self) -> None:
        """Stop polling. Pending waits get `Unavailable`: the task continues, and another client can wait for it."""
        self._is_closed = True
        self._fail_pending(_closed())
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()

    def _fail_pending(self, error: Exception) -> None:
        for future in [future for waiting in self._waiting.values() for future in waiting if not future.done()]:
            future.set_exception(error)

    def _on_notification(self, _turn: int, task_ids: Sequence[int]) -> None:
        if not task_ids or any(task_id in self._waiting for task_id in task_ids):
            self._check_now.set()

    async def _poll(self) -> None:
        pause = POLL_SECONDS_FIRST
        while self._waiting:
            try:
                await asyncio.wait_for(self._check_now.wait(), pause)
                pause = POLL_SECONDS_FIRST
            except TimeoutError:
                pause = min(pause * 1.5, POLL_SECONDS_MAX)
            self._check_now.clear()
            try:
                await self._check(list(self._waiting))
            except TRANSIENT:
                continue
            except ANY_DB_ERROR as error:
                # Retrying will not help (a revoked privilege, a missing schema), so pending waits get the error.
                self._fail_pending(error)
                return

    async def _check(self, task_ids: list[int]) -> None:
        for row in await results_sql.results(self._database, task_ids, self._tenant_id):
            for future in self._waiting.get(row.task_id, ()):
                if not future.done():
                    future.set_result(TaskEnd(*row))


def _closed() -> Unavailable:
    return Unavailable(
        "The client was closed before the task ended.",
        code="client_closed",
        advice="The task goes on; wait for it with an open client.",
    )


def output_of(task_id: str, ending: TaskEnd) -> Any:
    """Return the output of a task, or raise `TaskFailed` if it did not complete."""
    if ending.state == "completed":
        return json_codec.decode(ending.output or b"null")
    if ending.state in ("canceled", "skipped", "upstream_failed"):
        word = "did not run: an upstream failed" if ending.state == "upstream_failed" else f"was {ending.state}"
        raise TaskFailed(
            f"Task {task_id} {word}.",
            code=f"task_{ending.state}",
            advice=f"See `holdfast task why {task_id}`.",
            state=ending.state,
        )
    raise TaskFailed(
        f"Task {task_id} failed: {ending.type or ending.code}: {ending.message}",
        advice=f"{ending.sentence} See `holdfast task why {task_id}`.",
        state=ending.state,
        cause=ending.code,
    )
