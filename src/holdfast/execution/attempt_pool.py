"""Many attempts on few asyncio tasks: only an attempt that suspends occupies a task of its own.

A runner task executes attempt after attempt from the queue. Before each, it makes sure that a spare runner exists,
which gets its turn only when every other runner is suspended inside user code. So a thousand attempts that never
suspend need two tasks, and a thousand that do need a thousand, all of them concurrent. Each attempt has its own
context: a context variable that it sets is not seen by the next. However an attempt ends, its runner continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from typing import Any

from holdfast.core.tasks.failure import failure_of
from holdfast.core.tasks.outcome import Failed, Outcome
from holdfast.execution.running_attempt import RunningAttempt

log = logging.getLogger("holdfast.worker")


class AttemptPool:
    """Runs all started attempts: `run(attempt)` returns the outcome, `on_end(attempt, outcome)` receives it."""

    def __init__(
        self, run: Callable[[RunningAttempt], Awaitable[Outcome]], on_end: Callable[[RunningAttempt, Outcome], None]
    ) -> None:
        self._run_attempt = run
        self._on_end = on_end
        self._queue: deque[RunningAttempt] = deque()
        self._has_spare = False
        self._runners: set[asyncio.Task[None]] = set()

    def start(self, attempts: Iterable[RunningAttempt]) -> None:
        self._queue.extend(attempts)
        self._ensure_spare_runner()

    def _ensure_spare_runner(self) -> None:
        if self._queue and not self._has_spare:
            self._has_spare = True
            runner = asyncio.create_task(self._run(), name="holdfast-attempts")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        self._has_spare = False
        task = asyncio.current_task()
        assert task is not None
        queue, run_attempt, on_end = self._queue, self._run_attempt, self._on_end
        while queue:
            attempt = queue.popleft()
            attempt.task = task
            self._ensure_spare_runner()
            try:
                outcome = await run_attempt(attempt)
            except Exception as error:
                # An internal error fails this attempt only. Otherwise its slot and lease would be lost until the worker
                # ends.
                log.exception(
                    "attempt %d of task %d could not be run", attempt.claimed.attempt, attempt.claimed.task_id
                )
                outcome = Failed(failure_of(error))
            attempt.task = None
            on_end(attempt, outcome)
            if task.cancelling():
                # This task was cancelled and the attempt ignored it: end the task, so that the next attempt is not
                # cancelled.
                self._ensure_spare_runner()
                return


class Escaped(Exception):
    """Carries an exception of user code that would end more than its attempt: KeyboardInterrupt, GeneratorExit."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


ESCAPES = (KeyboardInterrupt, GeneratorExit)


async def in_own_context(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine inside its own copy of the context, on the task that awaits it."""
    context = copy_context()
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration as finished:
        return finished.value
    except ESCAPES as error:
        raise Escaped(error) from None
    return await _SuspendedCoroutine(coroutine, context, awaited)


class _SuspendedCoroutine:
    """The rest of a coroutine that suspended: each further step runs in its context too."""

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context, awaited: Any) -> None:
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine, awaited = self._context.run, self._coroutine, self._awaited
        step: Callable[[Any], Any]
        while True:
            try:
                argument = yield awaited
                step = coroutine.send
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - whatever is thrown in belongs to the coroutine
                argument, step = error, coroutine.throw
            try:
                awaited = run(step, argument)
            except StopIteration as finished:
                return finished.value
            except ESCAPES as error:
                raise Escaped(error) from None
