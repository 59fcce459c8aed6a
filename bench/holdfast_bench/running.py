"""Run a coroutine on the fastest event loop available; every process of a measurement uses the same one.

SIGTERM is handled like Ctrl-C: everything is cleaned up before the process ends.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; an interruption becomes `KeyboardInterrupt`, after everything was cleaned up."""
    try:
        return _run(_interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    return await work
