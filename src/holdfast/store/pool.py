"""A pool of connections that costs next to nothing to use: a stack of idle ones and a line of those who wait.

Sessions carry no state, so nothing is reset between uses; a connection found closed is replaced. Measured against the
driver's own pool, acquiring and releasing here is an order of magnitude cheaper, which single enqueues feel. A closed
pool stays closed, and says so to whoever asks or waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Unavailable

_ROOM = object()
"""Handed to a waiting caller instead of a connection: it may make one."""
_NOTHING = object()
"""Handed to a waiting caller when the pool is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """How busy a pool is."""

    size: int
    open: int
    in_use: int
    waiting: int


class Pool:
    """At most `size` connections made by `connect`."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._count = 0
        self._idle: list[Any] = []
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._is_closed = False

    async def acquire(self, *, seconds_max: float) -> Any:
        """A connection, the most recently used one first. Waits at most `seconds_max` for one to come free.

        A connection that comes free is handed to the caller that waits longest: no later caller can take it first.
        """
        if (idle := self.take()) is not None:
            return idle
        if self._is_closed:
            raise _closed()
        if self._count < self._size:
            self._count += 1
            return await self._make()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the turn.
        async with asyncio.timeout(seconds_max):
            handed = await self._handed(turn)
            return await self._make() if handed is _ROOM else handed

    async def _handed(self, turn: asyncio.Future[Any]) -> Any:
        """What this waiting caller is handed: a connection, or room to make one."""
        try:
            handed = await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                # Handed over and given up in the same moment: it goes to the next caller.
                self._give_up(turn.result())
            raise
        if handed is _NOTHING:
            raise _closed()
        return handed

    def _give_up(self, handed: Any) -> None:
        if handed is _ROOM:
            self._count -= 1
            self._offer_room()
        elif handed is not _NOTHING:
            self.release(handed)

    @property
    def use(self) -> PoolUse:
        """How busy it is now."""
        in_use = self._count - len(self._idle)
        return PoolUse(size=self._size, open=self._count, in_use=in_use, waiting=len(self._waiting))

    def take(self) -> Any:
        """An idle connection, if there is one: the usual case, without a turn of the event loop."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._count -= 1
        return None

    async def _make(self) -> Any:
        """Make a connection that is counted already."""
        try:
            connection = await self._connect()
            if self._is_closed:
                connection.terminate()
                raise _closed()
            return connection
        except BaseException:
            self._count -= 1
            self._offer_room()
            raise

    def release(self, connection: Any) -> None:
        """Give a connection back; the longest waiting caller gets it."""
        if self._is_closed:
            connection.terminate()
            self._count -= 1
        elif connection.is_closed():
            self._count -= 1
            self._offer_room()
        elif not self._hand(connection):
            self._idle.append(connection)

    def _offer_room(self) -> None:
        """Let the longest waiting caller make a connection in place of one that is gone; it is counted from now on."""
        if self._hand(_ROOM):
            self._count += 1

    def _hand(self, what: Any) -> bool:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(what)
                return True
        return False

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back. Callers that wait are refused."""
        self._is_closed = True
        while self._hand(_NOTHING):
            pass
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for connection in idle:
            try:
                await connection.close(timeout=2)
            except Exception:  # noqa: BLE001 - whatever a broken connection says, it is to go
                connection.terminate()


def _closed() -> Unavailable:
    return Unavailable("The connections to PostgreSQL are closed.", code="client_closed", advice="Open them again.")
