"""Listener for notifications on its own connection; it reconnects by itself when that connection breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.store.database import TRANSIENT, Database, Session

RECONNECT_SECONDS_MAX = 5.0
TRIAL_CHANNEL = "holdfast_trial"


async def hears(database: Database, *, seconds_max: float = 1.0) -> bool:
    """Return whether a notification of this database arrives on a listening connection."""
    if not database.can_listen:
        return False
    heard = asyncio.Event()
    session = await database.connect_directly()
    try:
        await session.connection.add_listener(TRIAL_CHANNEL, lambda *_args: heard.set())
        await database.fetch("select pg_notify($1, '')", TRIAL_CHANNEL)
        async with asyncio.timeout(seconds_max):
            await heard.wait()
    except TimeoutError:
        return False
    finally:
        await session.close()
    return True


Heard = Callable[[int, Sequence[int]], None]


class Listener:
    """Calls `heard(turn, ids)` for each notification on a channel; all listeners get the same turn. `also` are further
    channels on the same connection, each with its own callback.

    A reconnect counts as a notification without ids: the callback must poll. Behind a pooler that does not forward
    notifications, and without a direct URL, nothing is received; workers and callers also poll.
    """

    def __init__(
        self, database: Database, channel: str, heard: Heard, *, also: Mapping[str, Heard] | None = None
    ) -> None:
        self._database = database
        self._channel = channel
        self._heard = heard
        self._also = also or {}
        self._task: asyncio.Task[None] | None = None
        self._broken = asyncio.Event()

    async def start(self) -> None:
        """Start listening. Returns once the first LISTEN is in force, so that no later notification is missed."""
        if not self._database.can_listen:
            return
        session = await self._listen()
        self._task = asyncio.create_task(self._stay(session), name=f"holdfast-listener-{self._channel}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _listen(self) -> Session:
        self._broken = asyncio.Event()
        session = await self._database.connect_directly()
        session.connection.add_termination_listener(lambda _connection: self._broken.set())
        for channel in (self._channel, *self._also):
            await session.connection.add_listener(channel, self._on_notification)
        return session

    def _on_notification(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        # Every database user can forge a notification. It is only a hint, so a malformed one only triggers a poll.
        turn, _, ids = payload.rpartition(":")
        heard = self._also.get(channel, self._heard)
        heard(int(turn) if turn.isdigit() else 0, [int(part) for part in ids.split(",") if part.isdigit()])

    async def _stay(self, session: Session) -> None:
        pause = 0.05
        try:
            while True:
                await self._broken.wait()
                while True:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                    try:
                        session = await self._listen()
                    except TRANSIENT:
                        pause = min(pause * 2, RECONNECT_SECONDS_MAX)
                        continue
                    pause = 0.05
                    self._heard(0, [])
                    break
        finally:
            await session.close()
