"""Tries of addresses at the door: a credential that was wrong costs one, and who has none left is told to wait.

What is right always opens: behind one address, as behind a proxy, are many, and none of them can be shut out by what
another presents. So a credential is looked up also where no try is left, only few of them at once; who guesses on is
looked up late, and learns no more than before.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.core.limits.token_bucket import TokenBucket
from holdfast.errors import Unauthorized, Unavailable

LATE_MAX = 2
"""How many of those without a try left are looked up at once."""


class LoginThrottle:
    """What is left of them for each address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._patience = TokenBucket()
        # People apart from programs: what an issuer takes its time over holds up nobody else.
        self._late = {is_person: asyncio.Semaphore(LATE_MAX) for is_person in (False, True)}

    def spend(self, address: str) -> None:
        """Count one try of an address; `Unavailable` if it made too many."""
        wait_seconds = self._patience.spend(address, self._clock())
        if wait_seconds:
            raise _too_many(wait_seconds)

    @asynccontextmanager
    async def one(self, address: str, *, is_person: bool = False) -> AsyncIterator[None]:
        """Look one credential up in the block: where it raises `Unauthorized`, a try is lost, or there was none left.

        Paid before: a thousand at once are not better than one by one.
        """
        wait_seconds = self._patience.spend(address, self._clock())
        if wait_seconds:
            async with self._late[is_person]:
                try:
                    yield
                except Unauthorized as error:
                    raise _too_many(wait_seconds) from error
            return
        try:
            yield
        except Unauthorized:
            raise
        except BaseException:
            # Who is no member, and what could not be looked up, is not somebody guessing.
            self._patience.refund(address, self._clock())
            raise
        else:
            self._patience.refund(address, self._clock())


def _too_many(wait_seconds: float) -> Unavailable:
    return Unavailable(
        "Too many credentials from this address were not accepted.",
        code="too_many_attempts",
        advice="Wait, and use a token that is in use.",
        retry_after_seconds=math.ceil(wait_seconds),
    )
