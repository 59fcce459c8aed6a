"""The beginning of a worker: a dispatcher that is away for a moment is waited for, one that never answers is not.

A mistake is told at once: a name that nobody has, a certificate that is not good, a password or token that is refused,
an answer that no dispatcher gives. A connection that is refused may be either, so that is tried for a while.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.errors import HoldfastError
from holdfast.store.database import BAD_CREDENTIALS, TRANSIENT

T = TypeVar("T")

log = logging.getLogger("holdfast.worker")

START_SECONDS_MAX = 60.0
"""How long a worker that starts waits for a server."""
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 0.25, 5.0


async def once_there(
    ask: Callable[[], Awaitable[T]], *, seconds_max: float, is_over: Callable[[], bool] = lambda: False
) -> T:
    """The answer to a first question, asked again while whoever should answer is away."""
    until, pause = time.monotonic() + seconds_max, PAUSE_SECONDS_FIRST
    while True:
        try:
            return await ask()
        except TRANSIENT as error:
            left_seconds = until - time.monotonic()
            if is_lasting(error) or left_seconds <= 0 or is_over():
                raise
            said = error.detail if isinstance(error, HoldfastError) else str(error) or type(error).__name__
            log.warning("%s Trying again for %.0f s.", said, left_seconds)
            await asyncio.sleep(min(left_seconds, pause * random.uniform(0.5, 1.5)))
            pause = min(PAUSE_SECONDS_MAX, pause * 2)


def is_lasting(error: BaseException) -> bool:
    """Whether asking again would not help."""
    cause = error.__cause__ or error
    if isinstance(cause, socket.gaierror):
        return cause.errno != socket.EAI_AGAIN
    # A certificate that is not good is a ValueError too, as is an answer that is not HTTP.
    if isinstance(cause, (ValueError, *BAD_CREDENTIALS)):
        return True
    return isinstance(error, HoldfastError) and bool(error.fields.get("is_lasting"))
