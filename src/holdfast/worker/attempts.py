"""Many attempts on few asyncio tasks: a task is spent on an attempt that waits, not on one that just runs.

A runner takes attempt after attempt from the line. Before each it makes sure that a spare runner stands by, which gets
its turn only when every other runner is suspended inside user code. So a thousand attempts that never wait cost two
tasks, and a thousand that do cost a thousand, all of them concurrent. Each attempt has a context of its own: what it
sets in a context variable is not seen by the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from typing import Any

from holdfast.worker.held import Held


class Attempts:
    """Runs `attempt(held)` for everything started."""

    def __init__(self, attempt: Callable[[Held], Awaitable[None]]) -> None:
        self._attempt = attempt
        self._line: deque[Held] = deque()
        self._has_spare = False
        self._runners: set[asyncio.Task[None]] = set()

    def start(self, entries: Iterable[Held]) -> None:
        self._line.extend(entries)
        self._stand_by()

    def _stand_by(self) -> None:
        if self._line and not self._has_spare:
            self._has_spare = True
            runner = asyncio.create_task(self._run(), name="holdfast-attempts")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        self._has_spare = False
        task = asyncio.current_task()
        assert task is not None
        line, attempt = self._line, self._attempt
        while line:
            held = line.popleft()
            held.task = task
            self._stand_by()
            await attempt(held)
            held.task = None
            if task.cancelling():
                # Somebody asked this task to stop and the attempt did not listen: the next one must not hear it.
                self._stand_by()
                return


class InOwnContext:
    """Await a coroutine step by step inside its own copy of the context, on the task that awaits it."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._context: Context = copy_context()

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine = self._context.run, self._coroutine
        step: Callable[[Any], Any] = coroutine.send
        argument: Any = None
        while True:
            try:
                awaited = run(step, argument)
            except StopIteration as finished:
                return finished.value
            try:
                argument = yield awaited
                step = coroutine.send
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - whatever is thrown in belongs to the coroutine
                argument, step = error, coroutine.throw
