"""Notifier: wakes workers and waiting callers after a commit.

The first notification is sent at once; further ones are batched and follow at most every 10 ms. They use a separate
connection, so no writing transaction ever holds PostgreSQL's NOTIFY lock. Notifications may be lost; workers and
callers also poll.
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
# A notification is a hint, so its commit need not wait for the disk. The setting applies to this transaction only, so
# that a pooling proxy does not pass it on to another client.
_NOTIFY = (
    "select set_config('synchronous_commit', 'off', true), pg_notify($1, payload) from unnest($2::text[]) as payload"
)


class Notifier:
    """Notifies of lanes with new work, of awaited tasks that ended, and of workers whose attempts must stop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Session | None = None
        self._lanes: set[int] = set()
        self._done: set[int] = set()
        self._stops: set[int] = set()
        self._sending: asyncio.Task[None] | None = None
        self._turn = random.randrange(_TURNS)
        self._is_closed = False

    def notify(self, *, lanes: Iterable[int] = (), done: Iterable[int] = (), stops: Iterable[int] = ()) -> None:
        """Send a notification in the background, without waiting."""
        self._lanes.update(lanes)
        self._done.update(done)
        self._stops.update(stops)
        if (self._lanes or self._done or self._stops) and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_pending(), name="holdfast-notifier")

    def make_ready(self) -> None:
        """Connect before there is a notification to send, because connecting takes longer than sending."""
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_pending(), name="holdfast-notifier")

    async def flush(self) -> None:
        """Wait until all pending notifications were sent or given up."""
        while self._sending is not None and not self._sending.done():
            await self._sending

    async def close(self) -> None:
        await self.flush()
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send_pending(self) -> None:
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
            # A lost notification costs time, never work: the next poll finds the work.
            self._drop()

    def _drop(self) -> None:
        """Drop the connection, so that the next notification opens another. The server may still have this one open."""
        if self._session is not None:
            self._session.connection.terminate()
            self._session = None

    async def _connected(self) -> Session | None:
        """Return the connection; None after `close`, because a connection opened then would never be closed."""
        if (self._session is None or self._session.is_closed()) and not self._is_closed:
            self._session = await self._database.connect()
        return self._session

    async def _send(self, session: Session, ids_by_channel: Mapping[str, set[int]]) -> None:
        self._turn = (self._turn + 1) % _TURNS
        for channel, ids in ids_by_channel.items():
            if ids:
                await session.connection.fetch(_NOTIFY, channel, _payloads(self._turn, sorted(ids)))


def _payloads(turn: int, ids: list[int]) -> list[str]:
    """Return `turn:id,id,…`: every listener gets the same turn, and the ids stay well below NOTIFY's 8000 bytes."""
    return [f"{turn}:" + ",".join(map(str, ids[start : start + _IDS_MAX])) for start in range(0, len(ids), _IDS_MAX)]
