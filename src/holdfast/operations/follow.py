"""Waiting for the end of tasks and runs through any operation client, by repeated long polls."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from holdfast.client.run_events import RunEvent
from holdfast.core.values.duration import seconds_of
from holdfast.errors import WaitTimeout
from holdfast.operations import run_follow, tasks
from holdfast.operations.client import OperationClient
from holdfast.operations.tasks import WAIT_SECONDS_MAX, WAITING, TaskEnding

FIRST_WAIT_SECONDS_MAX = 1.0
"""How long the first request may wait. It returns soon, so that the client knows that the server exists and can wait
for it during a later outage.
"""


class TimeLimit:
    """The time left of a time limit."""

    def __init__(self, limit: str | float | None) -> None:
        self.seconds = None if limit is None else seconds_of(limit)
        self._until = None if self.seconds is None else time.monotonic() + self.seconds

    @property
    def next_wait_seconds(self) -> float:
        """How long the next request may wait."""
        left = WAIT_SECONDS_MAX if self._until is None else self._until - time.monotonic()
        return max(0.0, min(WAIT_SECONDS_MAX, left))

    @property
    def is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until


async def ending_of(operation_client: OperationClient, task_id: str, timeout: str | float | None) -> TaskEnding:
    """Wait for the end of a task; raise `WaitTimeout` if it takes longer."""
    limit, wait_seconds_max = TimeLimit(timeout), FIRST_WAIT_SECONDS_MAX
    while True:
        wait_seconds = min(wait_seconds_max, limit.next_wait_seconds)
        ending = await operation_client.ask(
            tasks.await_task, tasks.AwaitTask(task_id=task_id, wait_seconds=wait_seconds)
        )
        wait_seconds_max = WAIT_SECONDS_MAX
        if ending.state != WAITING:
            return ending
        if limit.is_over:
            raise WaitTimeout(
                f"Task {task_id} has not ended after {limit.seconds:g} s.",
                advice=f"See `holdfast task why {task_id}`.",
            )


async def end_of_run(operation_client: OperationClient, run_id: str, timeout: str | float | None) -> str:
    """Wait for the end of a run and return its state; raise `WaitTimeout` if it takes longer."""
    limit, wait_seconds_max = TimeLimit(timeout), FIRST_WAIT_SECONDS_MAX
    while True:
        wait_seconds = min(wait_seconds_max, limit.next_wait_seconds)
        ending = await operation_client.ask(
            run_follow.await_run, run_follow.AwaitRun(run_id=run_id, wait_seconds=wait_seconds)
        )
        wait_seconds_max = WAIT_SECONDS_MAX
        if ending.state != WAITING:
            return ending.state
        if limit.is_over:
            raise WaitTimeout(
                f"Run {run_id} has not ended after {limit.seconds:g} s.", advice=f"See `holdfast run why {run_id}`."
            )


async def events_of_run(operation_client: OperationClient, run_id: str, after: str) -> AsyncIterator[RunEvent]:
    """Yield events of a run after a cursor, until it has ended and all its events were read."""
    ended_by = ""
    while True:
        request = run_follow.ReadRunEvents(run_id=run_id, after=after, ended_by=ended_by, wait_seconds=WAIT_SECONDS_MAX)
        page = await operation_client.ask(run_follow.read_run_events, request)
        for event in page.events:
            yield event
        after, ended_by = page.next, page.ended_by
        if page.is_end:
            return
