"""A throttle for failed logins per client address: a wrong credential costs one attempt, and attempts refill with time.

A valid credential always works: many callers may share one address, as behind a proxy, and none of them can lock out
the others. So a credential is checked even if no attempt is left, but only a few at once: a guesser is checked late and
learns no more than before.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.core.limits.token_bucket import TokenBucket
from holdfast.errors import Unauthorized, Unavailable

LATE_MAX = 2
"""How many credentials of addresses without attempts are checked at once."""


class LoginThrottle:
    """The attempts left for each address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bucket = TokenBucket()
        # People and programs have separate limits: a slow identity provider delays no program.
        self._late = {is_person: asyncio.Semaphore(LATE_MAX) for is_person in (False, True)}

    def spend(self, address: str) -> None:
        """Count one failed attempt of an address; raise `Unavailable` if it made too many."""
        wait_seconds = self._bucket.spend(address, self._clock())
        if wait_seconds:
            raise _too_many(wait_seconds)

    @asynccontextmanager
    async def one(self, address: str, *, is_person: bool = False) -> AsyncIterator[None]:
        """Check one credential in the block.

        `Unauthorized` raised there costs an attempt, or reports that none was left.

        The attempt is taken in advance and refunded: a thousand concurrent checks have no advantage over one by one.
        """
        wait_seconds = self._bucket.spend(address, self._clock())
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
            # A non-member, or a check that could not be completed, is not a guess.
            self._bucket.refund(address, self._clock())
            raise
        else:
            self._bucket.refund(address, self._clock())


def _too_many(wait_seconds: float) -> Unavailable:
    return Unavailable(
        "Too many failed authentications from this address.",
        code="too_many_attempts",
        advice="Wait, then use a valid token.",
        retry_after_seconds=math.ceil(wait_seconds),
    )
