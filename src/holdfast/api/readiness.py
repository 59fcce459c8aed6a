"""Whether a server is of use: asked of the database once for everybody who wants to know at the same time."""

from __future__ import annotations

import asyncio

from holdfast.store.database import Database
from holdfast.store.migrate import require_current


class Readiness:
    """Of one server. Anybody may ask for it, as often as they like, so it costs one session at most."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looking: asyncio.Task[None] | None = None

    async def require(self) -> None:
        """Raise what keeps the server from being of use."""
        if self._looking is None:
            self._looking = asyncio.create_task(require_current(self._database), name="holdfast-ready")
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)

    def _looked(self, _looking: asyncio.Task[None]) -> None:
        self._looking = None
