"""Requests of an isolated process to its worker, numbered so that responses may come in any order.

The process has no database connection of its own for these: the worker sends the request and proves the lease.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Future

from holdfast import errors
from holdfast.execution.effect_store import Answer, Request
from holdfast.worker.isolation.frames import AttemptRequest, ErrorFrame, RequestAnswer

KINDS: dict[str, type[errors.HoldfastError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)
}


class AttemptRequests:
    """The open requests. The attempt's code sends them; the listening thread receives the responses."""

    def __init__(self, send: Callable[[AttemptRequest], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Answer]] = {}

    async def ask(self, request: Request) -> Answer:
        """Send a request from a coroutine."""
        return await asyncio.wrap_future(self._put(request))

    async def ask_blocking(self, request: Request) -> Answer:
        """Send a request from a plain function; awaiting it never suspends."""
        return self._put(request).result()

    def deliver(self, answered: RequestAnswer) -> None:
        """Deliver a response. A response to a request that was cancelled is dropped."""
        waiting = self._open.pop(answered.number, None)
        if waiting is None or not waiting.set_running_or_notify_cancel():
            return
        if answered.answer is not None:
            waiting.set_result(answered.answer)
        else:
            assert answered.error is not None
            waiting.set_exception(_error_of(answered.error))

    def _put(self, request: Request) -> Future[Answer]:
        number = next(self._numbers)
        waiting = self._open[number] = Future()
        self._send(AttemptRequest(number, request))
        return waiting


def error_frame(error: Exception) -> ErrorFrame:
    """Convert an error to a frame: a Holdfast error as it is, any other with its type name."""
    if isinstance(error, errors.HoldfastError):
        return ErrorFrame(type(error).__name__, error.detail, error.code, error.advice)
    return ErrorFrame("Unavailable", f"{type(error).__name__}: {error}", "unavailable", "")


def _error_of(error: ErrorFrame) -> errors.HoldfastError:
    kind = KINDS.get(error.kind, errors.HoldfastError)
    return kind(error.detail, code=error.code, advice=error.advice)
