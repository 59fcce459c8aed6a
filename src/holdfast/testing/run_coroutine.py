"""Run a coroutine from code that has no event loop of its own, or must not use the running one.

All coroutines run on one loop in a thread of this process, so that open resources (a connection to the server) can be
reused by the next one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_loops: dict[int, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on the shared loop, and return its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def is_on_shared_loop() -> bool:
    """Return whether the calling code was started by `run_coroutine`."""
    return asyncio.get_running_loop() is _loops.get(os.getpid())


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        # One loop per process, because a thread does not survive a fork.
        if (loop := _loops.get(os.getpid())) is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="holdfast-run-coroutine", daemon=True).start()
        return loop
