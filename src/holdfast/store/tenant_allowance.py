"""Tenant allowance: how many tasks a tenant may still enqueue.

Most tenants have no limit, and for them this costs a dictionary lookup. For the others, queued tasks are counted at
most once a second, and again before a request is refused; in between a process adds what it enqueues itself. So several
processes together may exceed a limit by what they enqueue within a second; none is refused wrongly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import Unavailable
from holdfast.store.database import Database, Session
from holdfast.store.sql.identity import tenants as tenants_sql

T = TypeVar("T")

LIMIT_SECONDS_MAX = 5.0
COUNT_SECONDS_MAX = 1.0


@dataclass(slots=True)
class _Known:
    max_queued: int | None
    read_at: float
    queued: int = 0
    counted_at: float = float("-inf")


class TenantAllowance:
    """What the tenants of one database may still enqueue, as far as this process knows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, _Known] = {}

    def is_open(self, tenant_id: int) -> bool:
        """Return whether nothing has to be counted: the usual case, without a pass of the event loop."""
        known = self._known.get(tenant_id)
        return known is not None and known.max_queued is None and time.monotonic() - known.read_at <= LIMIT_SECONDS_MAX

    async def require(
        self, tenant_id: int, count: int, *, key: str | None = None, session: Session | None = None
    ) -> None:
        """Raise `Unavailable` if `count` more tasks exceed the limit. A request under an existing key adds none.

        A caller that has a pooled session passes it.
        """
        if self.is_open(tenant_id):
            return
        source = session or self._database
        known = await self._read(source, tenant_id)
        limit, now = known.max_queued, time.monotonic()
        if limit is None:
            return
        if now - known.counted_at > COUNT_SECONDS_MAX or known.queued + count > limit:
            known.queued = await tenants_sql.count_queued(source, tenant_id, limit + 1)
            known.counted_at = now
        if known.queued + count <= limit:
            known.queued += count
            return
        if key is not None and await tenants_sql.has_key(source, tenant_id, key):
            return
        raise _refusal(limit)

    def spend(self, tenant_id: int, batch: list[T]) -> list[T]:
        """Check one of many batches against the count that `require` made before the first; return the batch."""
        known = self._known.get(tenant_id)
        if known is not None and known.max_queued is not None:
            if known.queued + len(batch) > known.max_queued:
                raise _refusal(known.max_queued)
            known.queued += len(batch)
        return batch

    async def _read(self, source: Database | Session, tenant_id: int) -> _Known:
        now = time.monotonic()
        known = self._known.get(tenant_id)
        if known is None or now - known.read_at > LIMIT_SECONDS_MAX:
            max_queued = await tenants_sql.read_allowance(source, tenant_id)
            known = self._known.setdefault(tenant_id, _Known(max_queued, now))
            known.max_queued, known.read_at = max_queued, now
        return known


def _refusal(limit: int) -> Unavailable:
    return Unavailable(
        f"The tenant may have {limit} tasks queued, and this would be more.",
        code="tenant_limit",
        advice="Try again when some are done, or have the limit raised (`holdfast tenant limit`).",
        limit=limit,
    )
