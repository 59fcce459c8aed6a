"""Isolated attempts: each runs in a process that can be limited, stopped and killed without affecting other attempts.

Processes are kept and reused; one that died, was killed or ran out of memory is replaced. Stopping an attempt
escalates: a stop message first, SIGTERM after half the grace time, SIGKILL at its end, both to the whole process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from holdfast.authoring.context import Context
from holdfast.core.tasks.classify import RetryReason
from holdfast.core.tasks.failure import LOST_CODE, Failure
from holdfast.core.tasks.outcome import Canceled, Lost, Outcome, Released
from holdfast.execution.runner import CANCELED, FENCED, outcome_of_stop, timed_out
from holdfast.execution.running_attempt import FOREVER, RunningAttempt
from holdfast.worker.isolation.frames import AttemptEnded, Start
from holdfast.worker.isolation.process import IsolatedProcess, Unstartable
from holdfast.worker.supervisor.start_orders import Orders

log = logging.getLogger("holdfast.worker")

LATE_SECONDS = 5.0
"""If the worker's loop is blocked and cannot kill a late process, the worker itself ends this much later."""


class Isolated:
    """The isolator of one worker. `orders` say how a process loads the app."""

    def __init__(self, orders: Orders) -> None:
        settings = orders.settings
        self._orders = orders
        self._grace_seconds = settings.worker.cancel_grace_seconds
        self._output_bytes_max = settings.limits.output_bytes_max
        self._idle_max = os.cpu_count() or 1
        self._idle: list[IsolatedProcess] = []
        self._all: set[IsolatedProcess] = set()

    async def run(self, context: Context, attempt: RunningAttempt) -> Outcome:
        """Run one attempt to its outcome. When this returns, its code no longer runs."""
        attempt.deadline_at = FOREVER
        try:
            process = await self._process()
        except asyncio.CancelledError:
            _clear_cancellation(attempt)
            return Canceled() if attempt.stop_reason == CANCELED else Released()
        except (Unstartable, OSError) as error:
            why = (
                f"The process of the attempt cannot be started: {error}." if isinstance(error, OSError) else str(error)
            )
            return Lost(Failure(code=RetryReason.LAUNCH_FAILED, message=why))
        try:
            return await self._attempt(process, context, attempt)
        except Exception as error:
            # Whatever the error is, the code must not run concurrently with a retry, and the process must not be
            # reused.
            log.exception("the process of an attempt cannot be spoken with")
            await self._discard(process)
            return Lost(Failure(code=LOST_CODE, message=f"The process of the attempt was given up: {error!r}."))
        finally:
            self._keep(process)

    async def close(self) -> None:
        """End every process."""
        for process in tuple(self._all):
            await process.end()
        self._all.clear()
        self._idle.clear()

    async def _process(self) -> IsolatedProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_usable:
                return process
            await self._discard(process)
        process = IsolatedProcess()
        self._all.add(process)
        try:
            await process.start(self._orders)
        except BaseException:
            await self._discard(process)
            raise
        return process

    def _keep(self, process: IsolatedProcess) -> None:
        if process.is_usable and len(self._idle) < self._idle_max:
            self._idle.append(process)
        else:
            self._all.discard(process)
            process.kill()

    async def _discard(self, process: IsolatedProcess) -> None:
        self._all.discard(process)
        await process.end()

    async def _attempt(self, process: IsolatedProcess, context: Context, attempt: RunningAttempt) -> Outcome:
        timeout = attempt.plan.policy.timeout_seconds
        if timeout is not None:
            attempt.deadline_at = time.monotonic() + timeout + self._grace_seconds + LATE_SECONDS
        assert context._effect_runner is not None
        start = self._start(context, attempt)
        running = asyncio.create_task(process.run(start, _note_function(context), context._effect_runner.ask))
        try:
            async with asyncio.timeout(timeout):
                return _outcome(await asyncio.shield(running), process)
        except TimeoutError:
            await self._force_end(process, running, attempt)
            return timed_out(timeout)
        except asyncio.CancelledError:
            _clear_cancellation(attempt)
            await self._force_end(process, running, attempt)
            return outcome_of_stop(attempt)

    def _start(self, context: Context, attempt: RunningAttempt) -> Start:
        return Start(
            action=context.action,
            input=attempt.claimed.input,
            task_id=context.task_id,
            attempt=context.attempt,
            lease_token=str(attempt.claimed.lease_token),
            tenant=context.tenant,
            queue=context.queue,
            tags=context.tags,
            run_id=context.run_id,
            memory_bytes_max=attempt.plan.policy.memory_bytes_max,
            output_bytes_max=self._output_bytes_max,
        )

    async def _force_end(
        self, process: IsolatedProcess, running: asyncio.Task[AttemptEnded | None], attempt: RunningAttempt
    ) -> None:
        """Make the attempt end: stop message, then SIGTERM, then SIGKILL."""
        began = time.monotonic()
        process.ask_to_stop()
        await _wait_until(running, lambda: began + self._grace(attempt) / 2, attempt)
        if not running.done():
            process.signal(signal.SIGTERM)
            await _wait_until(running, lambda: began + self._grace(attempt), attempt)
        if not running.done():
            process.kill()
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])

    def _grace(self, attempt: RunningAttempt) -> float:
        """Return the grace time, shortened if the lease expires earlier: the process must be dead before it does."""
        left = attempt.overdue_at - time.monotonic() if attempt.stop_reason == FENCED else FOREVER
        return max(0.0, min(self._grace_seconds, left / 2))


async def _wait_until(running: asyncio.Task[Any], instant: Callable[[], float], attempt: RunningAttempt) -> None:
    """Wait for the end, at most until an instant that a second stop request may bring forward."""
    while not running.done() and (left := instant() - time.monotonic()) > 0:
        try:
            await asyncio.wait([running], timeout=left)
        except asyncio.CancelledError:
            _clear_cancellation(attempt)


def _clear_cancellation(attempt: RunningAttempt) -> None:
    """Clear the cancellation, because it was handled: the task that runs attempts continues."""
    if attempt.task is not None:
        attempt.task.uncancel()


def _note_function(context: Context) -> Callable[[str, bytes], None]:
    return lambda kind, detail: context._note(kind, json.loads(detail))


def _outcome(ended: AttemptEnded | None, process: IsolatedProcess) -> Outcome:
    if ended is not None:
        return ended.outcome()
    return Lost(Failure(code=LOST_CODE, message=f"The process of the attempt {process.how_it_died}."))
