"""Thread pools for blocking library calls: each kind of call has a few threads of its own.

The event loop's default threads resolve host names for every connection, so a platform that hangs must not occupy them.
The process does not wait for these threads when it ends: a call that never returns cannot delay a stop. A call whose
caller was cancelled before its turn is not made.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class BlockingCallPool:
    """Runs at most `threads_max` calls at once; others wait."""

    def __init__(self, name: str, *, threads_max: int) -> None:
        self._name = f"holdfast-{name}"
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting: deque[Callable[[], None]] = deque()

    async def run(self, call: Callable[..., T], *positional: Any, **named: Any) -> T:
        """Run the call in a thread; return its result or raise its exception."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(put: Callable[[Any], None], value: Any) -> None:
            if not answer.done():
                put(value)

        def make() -> None:
            if answer.cancelled():
                return
            try:
                put, value = answer.set_result, call(*positional, **named)
            except BaseException as error:  # noqa: BLE001 - the awaiting caller gets it
                put, value = answer.set_exception, error  # type: ignore[assignment]
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                loop.call_soon_threadsafe(settle, put, value)

        self._begin(make)
        return await answer

    def _begin(self, make: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.append(make)
            if self._threads == self._threads_max:
                return
            self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        """Run waiting calls one after another, and end when there are none."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                make = self._waiting.popleft()
            make()
