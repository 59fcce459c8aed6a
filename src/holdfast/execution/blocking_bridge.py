"""A bridge that runs a coroutine in another thread, and the plain code it calls in this one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from holdfast.execution.threads import contained, to_the_end

LIVENESS_CHECK_SECONDS = 1.0


class BlockingBridge:
    """Runs a coroutine on an event loop in a new thread, and the plain code that it calls in the calling thread.

    So plain code runs in the thread it would have without an executor, and no event loop runs there: signals and
    debuggers reach it, and it may run a loop itself. Create the bridge before memory is limited, because the thread's
    memory does not count for the action.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._work: SimpleQueue[tuple[Coroutine[Any, Any, Any], Context] | None] = SimpleQueue()
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="holdfast-executor", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    async def call(
        self,
        function: Callable[..., Any],
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        stop: threading.Event,
    ) -> Any:
        """Make the thread that waits in `run` call this function, with the caller's context variables."""
        call = _Call(partial(copy_context().run, contained, function, positional, arguments))
        self._calls.put(call)
        return await to_the_end(call.answer, stop)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Execute what the coroutine submits until it ends. A signal handler that raises meanwhile cancels it."""
        self._work.put((work, copy_context()))
        raised: BaseException | None = None
        while True:
            call: _Call | None = None
            try:
                call = self._calls.get(timeout=LIVENESS_CHECK_SECONDS)
                if call is None:
                    break
                call.run()
            except Empty:
                # A thread that ran out of memory may end without its final message.
                if not self._thread.is_alive():
                    break
            except BaseException as error:  # noqa: BLE001 - what a signal raised here is raised below
                raised = error
                if call is not None and not call.answer.done():
                    call.answer.set_exception(error)
                self._cancel()
        if raised is not None and isinstance(self._error, asyncio.CancelledError):
            raise raised
        if self._error is not None:
            raise self._error
        return self._value

    def __enter__(self) -> BlockingBridge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread, even if it was given nothing to do."""
        self._work.put(None)
        self._thread.join()

    def _live(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._is_ready.set()
                item = self._work.get()
                if item is not None:
                    work, variables = item
                    self._value = runner.run(self._noted(work), context=variables)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
        finally:
            self._is_ready.set()
            self._calls.put(None)

    async def _noted(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._task = asyncio.current_task()
        return await work

    def _cancel(self) -> None:
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop may just have ended
                self._loop.call_soon_threadsafe(self._task.cancel)


class _Call:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.answer: Future[Any] = Future()
        self._work = work

    def run(self) -> None:
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            value = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised to the caller that submitted it
            self.answer.set_exception(error)
        else:
            self.answer.set_result(value)
