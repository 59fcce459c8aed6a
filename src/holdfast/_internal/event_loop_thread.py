"""Event loop in its own thread, for code that has none, with an async context manager that is open while it runs.

A call while it is not open fails at once and never waits for an answer that cannot come: before it is opened, after it
is closed, and in a process forked from the one that opened it, where the thread does not exist.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from holdfast.errors import Invalid

T = TypeVar("T")


class EventLoopThread:
    """`enter`, then `run` from any thread, then `leave`; it can be entered again."""

    def __init__(self, what: str, inside: AbstractAsyncContextManager[Any], *, advice: str) -> None:
        """Create it closed.

        `what` names `inside` in messages ("The client is not open."); `advice` says how to open it.
        """
        self._what = what
        self._inside = inside
        self._advice = advice
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._pid = 0

    def enter(self) -> None:
        """Start the thread and enter the context manager. If that fails, the thread is ended too."""
        self._require_own_process()
        with self._changing:
            if self._thread is not None:
                raise Invalid(
                    f"The {self._what} is open already.", code="client_open", advice="Open it once, or make another."
                )
            started: Future[asyncio.AbstractEventLoop] = Future()
            thread = threading.Thread(target=self._live, args=(started,), name=f"holdfast-{self._what}", daemon=True)
            thread.start()
            self._loop = started.result()
            self._thread, self._pid = thread, os.getpid()
        try:
            self.run(self._inside.__aenter__())
        except BaseException:
            self.leave(None, None, None)
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait for its result."""
        try:
            self._require_own_process()
            with self._changing:
                if self._loop is None:
                    raise self._closed(f"The {self._what} is not open.")
                running = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            # It will never run, and an unclosed coroutine would cause a warning.
            work.close()
            raise
        try:
            return running.result()
        except CancelledError:
            raise self._closed(f"The {self._what} was closed meanwhile.") from None

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the context manager and end the thread. A forked process does nothing."""
        if self._loop is None or self._is_elsewhere:
            return
        try:
            self.run(self._inside.__aexit__(kind, error, trace))
        finally:
            self._end()

    def _end(self) -> None:
        with self._changing:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None or self._stop is None:
            return
        loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async def until_closed() -> None:
            self._stop = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

        try:
            # On exit the runner cancels the remaining tasks and waits for them.
            with asyncio.Runner() as runner:
                runner.run(until_closed())
        except BaseException as error:
            if started.done():
                raise
            # For example no file descriptors left for a loop: the caller of `enter` gets the error.
            started.set_exception(error)

    @property
    def _is_elsewhere(self) -> bool:
        return self._thread is not None and self._pid != os.getpid()

    def _require_own_process(self) -> None:
        if self._is_elsewhere:
            raise self._closed(f"The {self._what} was opened before this process was forked from another.")

    def _closed(self, detail: str) -> Invalid:
        return Invalid(detail, code="client_closed", advice=self._advice)
