"""A throttle for failed logins per client address: each uses one of a few attempts, which refill with time.

A valid credential always works: many callers may share one address, as behind a proxy, and none of them can lock out
the others. So credentials are checked even when an address has no attempts left, but at most `EXHAUSTED_CHECKS_MAX` at
a time. A wrong one is then answered with `too_many_attempts`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.core.limits.token_bucket import TokenBucket
from holdfast.errors import Unauthorized, Unavailable

EXHAUSTED_CHECKS_MAX = 2
"""How many credentials are checked concurrently for addresses that have no attempts left: ID tokens and API tokens
each."""


class LoginThrottle:
    """The attempts left for each address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bucket = TokenBucket()
        # ID tokens have a limit of their own, so that a slow identity provider does not delay API tokens.
        self._exhausted = {is_id_token: asyncio.Semaphore(EXHAUSTED_CHECKS_MAX) for is_id_token in (False, True)}

    def spend(self, address: str) -> None:
        """Count one failed attempt of an address; raise `Unavailable` if it made too many."""
        wait_seconds = self._bucket.spend(address, self._clock())
        if wait_seconds:
            raise _too_many(wait_seconds)

    @asynccontextmanager
    async def check(self, address: str, *, is_id_token: bool = False) -> AsyncIterator[None]:
        """Return a context manager around the check of one credential.

        If the block raises `Unauthorized`, the attempt is used up; if none was left, `Unavailable` is raised instead.
        The attempt is taken in advance and refunded, so that concurrent guesses get no more attempts than sequential
        ones.
        """
        wait_seconds = self._bucket.spend(address, self._clock())
        if wait_seconds:
            async with self._exhausted[is_id_token]:
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
            # Only `Unauthorized` is a guess: not a non-member with a valid credential, and not a check that failed.
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
