"""Start-up retry of workers and servers: wait for a database or a server that is away, full, or still starting.

Permanent errors are raised at once: an unknown host name, a bad certificate, a refused password or token, a schema of
another version, a response that no Holdfast server gives. A refused connection may be temporary, so it is retried for a
limited time.
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
"""How long a starting worker or server waits for its database, and a remote worker for its server."""
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 0.25, 5.0
_LASTING_CODES = {"schema_outdated", "database_too_old", "database_not_durable", "tenant_role_missing"}
"""Error codes that an operator must fix in the database before a retry can succeed."""


async def retry_until_available(
    step: Callable[[], Awaitable[T]], *, seconds_max: float, is_over: Callable[[], bool] = lambda: False
) -> T:
    """Call `step` until the other side answers, and return its result. Log each new cause once."""
    until, pause = time.monotonic() + seconds_max, PAUSE_SECONDS_FIRST
    previous_cause = ""
    while True:
        try:
            return await step()
        except TRANSIENT as error:
            seconds_left = until - time.monotonic()
            if is_lasting(error) or seconds_left <= 0 or is_over():
                raise
            cause = error.detail if isinstance(error, HoldfastError) else str(error) or type(error).__name__
            level = logging.DEBUG if cause == previous_cause else logging.WARNING
            log.log(level, "%s Trying again for %.0f s.", cause, seconds_left)
            previous_cause = cause
            await asyncio.sleep(min(seconds_left, pause * random.uniform(0.5, 1.5)))
            pause = min(PAUSE_SECONDS_MAX, pause * 2)


def is_lasting(error: BaseException) -> bool:
    """Return whether a retry would not help."""
    cause = error.__cause__ or error
    if isinstance(cause, socket.gaierror):
        return cause.errno != socket.EAI_AGAIN
    # A bad certificate is a ValueError too, as is a response that is not HTTP.
    if isinstance(cause, (ValueError, *BAD_CREDENTIALS)):
        return True
    return isinstance(error, HoldfastError) and (error.code in _LASTING_CODES or bool(error.fields.get("is_lasting")))
