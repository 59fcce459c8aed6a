"""User code in threads: called so that nothing it raises ends more than its attempt, and waited for to its end."""

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
    """For plain functions that a coroutine action hands to an effect or a step; made when the first one comes."""
    return ThreadPoolExecutor(THREADS_MAX, "holdfast-effect")


def contained(function: Callable[..., Any], positional: tuple[Any, ...], arguments: Mapping[str, Any]) -> Any:
    """Call it in its thread. What a future cannot carry, or would end the worker, arrives as an ordinary error."""
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
    """Call a plain function beside the event loop, with the caller's context variables."""
    call = _threads().submit(copy_context().run, contained, function, positional, arguments)
    return await to_the_end(call, stop)


async def to_the_end(call: Future[Any], stop: threading.Event | None) -> Any:
    """Wait for a thread, which nothing can stop: told to stop, it is still waited for; it never runs beside a retry."""
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
    """Wait however often somebody asks again for it to stop."""
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            continue
    if not ended.cancelled():
        ended.exception()
