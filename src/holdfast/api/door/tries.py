"""Tries of addresses at the door: each credential nobody knows yet costs one, and one that was right gives it back.

Who comes while others of the same address are looked up, and all tries are out with them, waits for one to come back:
a hundred workers that start together behind one address are no flood, and a hundred guesses get no further than ten.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.core.patience import Patience
from holdfast.errors import Unauthorized, Unavailable


class Tries:
    """What is left of them for each address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._patience = Patience()
        self._out: dict[str, set[asyncio.Future[None]]] = {}
        """What is being looked up, by who pays for it."""

    def spend(self, address: str) -> None:
        """Count one try of an address; `Unavailable` if it made too many."""
        wait_seconds = self._patience.spend(address, self._clock())
        if wait_seconds:
            raise Unavailable(
                "Too many credentials from this address were not accepted.",
                code="too_many_attempts",
                advice="Wait, and use a token that is in use.",
                retry_after_seconds=math.ceil(wait_seconds),
            )

    @asynccontextmanager
    async def one(self, address: str) -> AsyncIterator[None]:
        """Look one credential up in the block: only where it raises `Unauthorized`, the try is lost."""
        await self._take(address)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        out = self._out.setdefault(address, set())
        out.add(done)
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
        finally:
            done.set_result(None)
            out.discard(done)
            if not out:
                self._out.pop(address, None)

    async def _take(self, address: str) -> None:
        while True:
            out = self._out.get(address)
            try:
                return self.spend(address)
            except Unavailable:
                if not out:
                    raise
            await asyncio.wait(out, return_when=asyncio.FIRST_COMPLETED)
