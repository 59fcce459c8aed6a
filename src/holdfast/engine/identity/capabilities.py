"""Capability tokens: sealed for claimed tasks and verified with a secret that the database stores.

The secret is read once per process and belongs to no tenant, so this needs the engine's own database connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

from msgspec.structs import replace

from holdfast.core.identity.capability import Capability, end_of, seal, unseal
from holdfast.protocol.worker import HandedTask
from holdfast.store.database import Database
from holdfast.store.sql.identity import identity as identity_sql


class Capabilities:
    """Seals and unseals capability tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._secret = b""

    async def given_to(self, tasks: Iterable[HandedTask], tenant_id: int, token_id: str) -> list[HandedTask]:
        """Return claimed tasks of a tenant, each with the token of its attempt, valid while the API token with this id
        is."""
        secret = await self._own_secret()
        return [replace(task, capability_token=_sealed(task, tenant_id, token_id, secret)) for task in tasks]

    async def renewed(
        self, tenant_id: int, task_id: int, attempt: int, lease_expires_at: datetime, token_id: str
    ) -> str:
        """Return a new token for an attempt whose lease was extended and which runs longer than its first token is
        valid."""
        ends = end_of(lease_expires_at, None)
        return seal(Capability(tenant_id, task_id, attempt, ends, token_id), await self._own_secret())

    async def unseal(self, text: str) -> Capability | None:
        """Return the content of a token if it was sealed here and has not expired; else None."""
        return unseal(text, await self._own_secret(), at=time.time())

    async def _own_secret(self) -> bytes:
        if not self._secret:
            self._secret = await identity_sql.read_secret(self._database, "capability")
        return self._secret


def _sealed(task: HandedTask, tenant_id: int, token_id: str, secret: bytes) -> str:
    ends = _end_of(task.lease_expires_at, task.timeout_seconds)
    return seal(Capability(tenant_id, int(task.task_id), task.attempt, ends, token_id), secret)


_end_of = lru_cache(16)(end_of)
"""Cached, because all leases of a batch end at the same time."""
