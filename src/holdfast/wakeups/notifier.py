"""The bell: tell workers and waiting callers that something changed, after it was committed.

Leading edge: the first ring goes out at once, further ones are gathered and follow at most every 10 ms, on a connection
of its own, so no writing transaction ever holds PostgreSQL's NOTIFY lock. Rings may be lost: polling lies beneath.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping

from holdfast.store.database import TRANSIENT, Database, Session

WAKE_CHANNEL = "holdfast_wake"
DONE_CHANNEL = "holdfast_done"
STOP_CHANNEL = "holdfast_stop"
GATHER_SECONDS = 0.01
_IDS_MAX = 400
_TURNS = 1_000_000
# A ring is a hint: its commit need not wait for the disk. Said for this one transaction, so that a pooling proxy hands
# the setting to nobody else.
_NOTIFY = (
    "select set_config('synchronous_commit', 'off', true), pg_notify($1, payload) from unnest($2::text[]) as payload"
)


class Notifier:
    """Rings for lanes with new work, for awaited tasks that ended, and for workers whose attempts shall stop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Session | None = None
        self._lanes: set[int] = set()
        self._done: set[int] = set()
        self._stops: set[int] = set()
        self._ringing: asyncio.Task[None] | None = None
        self._turn = random.randrange(_TURNS)
        self._is_closed = False

    def notify(self, *, lanes: Iterable[int] = (), done: Iterable[int] = (), stops: Iterable[int] = ()) -> None:
        """Announce, without waiting."""
        self._lanes.update(lanes)
        self._done.update(done)
        self._stops.update(stops)
        if (self._lanes or self._done or self._stops) and (self._ringing is None or self._ringing.done()):
            self._ringing = asyncio.create_task(self._ring(), name="holdfast-bell")

    def make_ready(self) -> None:
        """Connect before there is anything to announce: that takes longer than a ring."""
        if self._ringing is None:
            self._ringing = asyncio.create_task(self._ring(), name="holdfast-bell")

    async def flush(self) -> None:
        """Wait until everything announced so far was sent or given up."""
        while self._ringing is not None and not self._ringing.done():
            await self._ringing

    async def close(self) -> None:
        await self.flush()
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ring(self) -> None:
        try:
            session = await self._connected()
            while self._lanes or self._done or self._stops:
                lanes, self._lanes = self._lanes, set()
                done, self._done = self._done, set()
                stops, self._stops = self._stops, set()
                if session is not None:
                    await self._send(session, {WAKE_CHANNEL: lanes, DONE_CHANNEL: done, STOP_CHANNEL: stops})
                    await asyncio.sleep(GATHER_SECONDS)
        except TRANSIENT:
            # A lost ring costs time, never work: the poll finds what it announced.
            self._drop()

    def _drop(self) -> None:
        """The next ring has another connection. The server may still have this one: it was only late, or refused."""
        if self._session is not None:
            self._session.connection.terminate()
            self._session = None

    async def _connected(self) -> Session | None:
        """None once it is closed: for what is accepted meanwhile a connection would be nobody's to close."""
        if (self._session is None or self._session.is_closed()) and not self._is_closed:
            self._session = await self._database.connect()
        return self._session

    async def _send(self, session: Session, notification_count: Mapping[str, set[int]]) -> None:
        self._turn = (self._turn + 1) % _TURNS
        for channel, ids in notification_count.items():
            if ids:
                await session.connection.fetch(_NOTIFY, channel, _payloads(self._turn, sorted(ids)))


def _payloads(turn: int, ids: list[int]) -> list[str]:
    """`turn:id,id,…`: every listener sees the same turn, and ids well below NOTIFY's 8000 bytes."""
    return [f"{turn}:" + ",".join(map(str, ids[start : start + _IDS_MAX])) for start in range(0, len(ids), _IDS_MAX)]
