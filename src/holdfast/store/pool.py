"""A connection pool with minimal overhead: a stack of idle connections and a queue of waiting callers.

Sessions have no state, so nothing is reset between uses; a connection found closed is replaced. Acquiring and releasing
measured an order of magnitude cheaper than with the driver's own pool, which matters for single enqueues. A closed pool
stays closed and raises for new and waiting callers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Unavailable

_ROOM = object()
"""Given to a waiting caller instead of a connection: the caller may open one."""
_NOTHING = object()
"""Given to a waiting caller when the pool is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """The utilization of a pool."""

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
        """Return a connection, the most recently used one first. Waits at most `seconds_max` for a free one.

        A freed connection goes to the caller that has waited longest: no later caller can take it first.
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
        # Not `wait_for`: before Python 3.12 it loses a cancellation that arrives together with the result.
        async with asyncio.timeout(seconds_max):
            handed = await self._handed(turn)
            return await self._make() if handed is _ROOM else handed

    async def _handed(self, turn: asyncio.Future[Any]) -> Any:
        """Return what this waiting caller is given: a connection, or the permission to open one."""
        try:
            handed = await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                # Given and cancelled in the same moment: pass it on to the next caller.
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
        """Return the current utilization."""
        in_use = self._count - len(self._idle)
        return PoolUse(size=self._size, open=self._count, in_use=in_use, waiting=len(self._waiting))

    def take(self) -> Any:
        """Return an idle connection, if there is one: the usual case, without a pass of the event loop."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._count -= 1
        return None

    async def _make(self) -> Any:
        """Open a connection that is already counted."""
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
        """Return a connection to the pool; the longest waiting caller gets it."""
        if self._is_closed:
            connection.terminate()
            self._count -= 1
        elif connection.is_closed():
            self._count -= 1
            self._offer_room()
        elif not self._hand(connection):
            self._idle.append(connection)

    def _offer_room(self) -> None:
        """Let the longest waiting caller open a connection to replace a closed one; it is counted from now on."""
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
        """Close idle connections; those in use are closed on release. Waiting callers get an error."""
        self._is_closed = True
        while self._hand(_NOTHING):
            pass
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for connection in idle:
            try:
                await connection.close(timeout=2)
            except Exception:  # noqa: BLE001 - the connection is discarded, whatever the error
                connection.terminate()


def _closed() -> Unavailable:
    return Unavailable("The connections to PostgreSQL are closed.", code="client_closed", advice="Open them again.")
