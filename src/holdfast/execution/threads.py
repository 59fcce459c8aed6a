"""User code in threads: an exception in it ends only its attempt, and a call is always awaited to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any

from holdfast.execution.attempt_pool import ESCAPES, Escaped

THREADS_MAX = 64


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the thread pool for plain functions in effects and steps of coroutine actions, created on first use."""
    return ThreadPoolExecutor(THREADS_MAX, "holdfast-effect")


def contained(function: Callable[..., Any], positional: tuple[Any, ...], arguments: Mapping[str, Any]) -> Any:
    """Call the function in its thread.

    Exceptions that a future cannot carry, or that would end the worker, are converted.
    """
    try:
        return function(*positional, **arguments)
    except StopIteration as error:
        raise RuntimeError("the action raised StopIteration") from error
    except ESCAPES as error:
        raise Escaped(error) from None


async def in_thread(
    function: Callable[..., Any],
    positional: tuple[Any, ...],
    arguments: Mapping[str, Any],
    stop: threading.Event | None,
) -> Any:
    """Call a plain function in a thread, with the caller's context variables."""
    call = _threads().submit(copy_context().run, contained, function, positional, arguments)
    return await to_the_end(call, stop)


async def to_the_end(call: Future[Any], stop: threading.Event | None) -> Any:
    """Wait for a call in a thread, which cannot be stopped.

    If this is cancelled, set `stop` and still wait, so that the call never runs concurrently with a retry.
    """
    ended = asyncio.wrap_future(call)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        if not call.cancel():
            await _wait_out(ended)
        raise


async def _wait_out(ended: asyncio.Future[Any]) -> None:
    """Wait until the call ends, however often this task is cancelled."""
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            continue
    if not ended.cancelled():
        ended.exception()
