"""Detect whether a new connection leads to another server: checked once per connection, never per statement.

A process that finds itself on another server (see `schema/16_epochs.sql`) must not use names that it resolved on the
old one: the new one may have other ids for them, or none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from holdfast.errors import Unavailable
from holdfast.store.session import Session


class ServerEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch of the connected server; `is_other`: since the known epoch, it was not only restarted."""

    epoch: int
    is_other: bool


Look = Callable[[Session, int], Awaitable[ServerEpoch]]
"""Return the current epoch, given the known one; begin it if no process has yet."""


class ServerIdentity:
    """What one pool knows about its server. Checks nothing until `look` is set."""

    def __init__(self, look: Look | None = None) -> None:
        self.look = look
        self.epoch = -1
        """The epoch of the last connection; -1 before the first."""
        self.changes = 0
        """How often the server turned out to be another one."""
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, forget: Callable[[], None]) -> None:
        """Register a callback for a restarted or replaced server, to clear ids that were resolved by name."""
        self._on_change.append(forget)

    async def greet(self, session: Session) -> None:
        """Check a connection; raise `Unavailable` if it leads to another server than the connections before it."""
        if self.look is None:
            return
        before = self.epoch
        seen = await self.look(session, before)
        # Connections are opened concurrently: the first one reports the change.
        if before < 0 or seen.epoch == self.epoch:
            self.epoch = max(self.epoch, seen.epoch)
            return
        self.epoch = seen.epoch
        for forget in self._on_change:
            forget()
        if seen.is_other:
            self.changes += 1
            raise server_changed()


def server_changed() -> Unavailable:
    return Unavailable(
        "PostgreSQL was replaced: by a replica, or by a backup.",
        code="server_changed",
        advice="Try again; what was committed last may be missing (`holdfast doctor`).",
    )
