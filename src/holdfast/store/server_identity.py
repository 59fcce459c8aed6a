"""Whether a new connection leads to the server it did before: looked at once per connection, never per statement.

A process that finds itself on another server (see `schema/16_epochs.sql`) must not go on with names it looked up
on the old one, which the new one may know by other numbers or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from holdfast.errors import Unavailable
from holdfast.store.session import Session


class ServerEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch of the server at the other end; `is_other`: since the one known before, it was not only restarted."""

    epoch: int
    is_other: bool


Look = Callable[[Session, int], Awaitable[ServerEpoch]]
"""Given the epoch known before, answers the present one; begins it where no process has yet."""


class ServerIdentity:
    """What one pool knows of its server. Looks at nothing until it is told how."""

    def __init__(self, look: Look | None = None) -> None:
        self.look = look
        self.epoch = -1
        """The epoch of the last connection; -1 before the first."""
        self.changes = 0
        """How often the server turned out to be another one."""
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, forget: Callable[[], None]) -> None:
        """Call it when the server is another, or was restarted: what was looked up by name is asked for again."""
        self._on_change.append(forget)

    async def greet(self, session: Session) -> None:
        """Look at a connection; `Unavailable` where it leads to another server than the connections before it."""
        if self.look is None:
            return
        before = self.epoch
        seen = await self.look(session, before)
        # Connections are made beside each other: whichever comes first says what changed.
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
