"""Questions of an isolated process to its worker: numbered, so that answers may come in any order.

The process has no connection to the database of its own: the worker asks in its place, and names the lease.
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
    """Asked by the code of the attempt, heard by the thread that listens."""

    def __init__(self, send: Callable[[AttemptRequest], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Answer]] = {}

    async def ask(self, request: Request) -> Answer:
        """From a coroutine."""
        return await asyncio.wrap_future(self._put(request))

    async def ask_blocking(self, request: Request) -> Answer:
        """From plain code: awaiting it never suspends."""
        return self._put(request).result()

    def hear(self, answered: RequestAnswer) -> None:
        """An answer to a question that nobody waits for any more is let go."""
        waiting = self._open.pop(answered.number, None)
        if waiting is None or not waiting.set_running_or_notify_cancel():
            return
        if answered.answer is not None:
            waiting.set_result(answered.answer)
        else:
            assert answered.trouble is not None
            waiting.set_exception(_error_of(answered.trouble))

    def _put(self, request: Request) -> Future[Answer]:
        number = next(self._numbers)
        waiting = self._open[number] = Future()
        self._send(AttemptRequest(number, request))
        return waiting


def trouble_of(error: Exception) -> ErrorFrame:
    """An error of the engine as it is, any other by its name."""
    if isinstance(error, errors.HoldfastError):
        return ErrorFrame(type(error).__name__, error.detail, error.code, error.advice)
    return ErrorFrame("Unavailable", f"{type(error).__name__}: {error}", "unavailable", "")


def _error_of(trouble: ErrorFrame) -> errors.HoldfastError:
    kind = KINDS.get(trouble.kind, errors.HoldfastError)
    return kind(trouble.detail, code=trouble.code, advice=trouble.advice)
