"""An event loop in a thread of its own, for code that has none, and what is used there: open for as long as it is.

Whoever asks while it is not open is told so at once, and never waits for an answer that cannot come: before it was
opened, after it was closed, and in a process that was forked from the one that opened it, where the thread is not.
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
    """`enter`, then `run` from any thread, then `leave`; again if wanted."""

    def __init__(self, what: str, inside: AbstractAsyncContextManager[Any], *, advice: str) -> None:
        """`what` is how people know `inside`, as in "The client is not open."; `advice` says how to open it."""
        self._what = what
        self._inside = inside
        self._advice = advice
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._pid = 0

    def enter(self) -> None:
        """Start the thread and enter what is inside. If that fails, nothing is left of either."""
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
        """Run a coroutine there and wait for it here."""
        try:
            self._require_own_process()
            with self._changing:
                if self._loop is None:
                    raise self._closed(f"The {self._what} is not open.")
                running = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            # It will never run, and left alone it would be complained about.
            work.close()
            raise
        try:
            return running.result()
        except CancelledError:
            raise self._closed(f"The {self._what} was closed meanwhile.") from None

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave what is inside and end the thread. A forked process has none of it, and leaves it alone."""
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
            # On leaving it cancels what still runs, and waits for that.
            with asyncio.Runner() as runner:
                runner.run(until_closed())
        except BaseException as error:
            if started.done():
                raise
            # No descriptors left for a loop, say: whoever opens it gets to know.
            started.set_exception(error)

    @property
    def _is_elsewhere(self) -> bool:
        return self._thread is not None and self._pid != os.getpid()

    def _require_own_process(self) -> None:
        if self._is_elsewhere:
            raise self._closed(f"The {self._what} was opened before this process was forked from another.")

    def _closed(self, detail: str) -> Invalid:
        return Invalid(detail, code="client_closed", advice=self._advice)
