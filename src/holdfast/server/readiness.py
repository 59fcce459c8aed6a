"""Readiness of a server: one database check, shared by all concurrent requests for it."""

from __future__ import annotations

import asyncio

from holdfast.store.database import Database
from holdfast.store.migrate import require_current
from holdfast.store.tenant_role import require_tenant_role


async def _require_ready(database: Database) -> None:
    """Raise unless the schema is current and requests can use the tenant role."""
    await require_current(database)
    await require_tenant_role(database)


class Readiness:
    """The readiness check of one server. The endpoint is public, so all requests together use at most one session."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looking: asyncio.Task[None] | None = None

    async def require(self) -> None:
        """Raise the error that keeps the server from being ready."""
        if self._looking is None:
            self._looking = asyncio.create_task(_require_ready(self._database), name="holdfast-ready")
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)

    def _looked(self, _looking: asyncio.Task[None]) -> None:
        self._looking = None
