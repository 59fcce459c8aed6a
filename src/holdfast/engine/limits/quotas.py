"""Retry quotas: set and remove them for a queue, an action or the tenant, with actor and reason, and show their use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core.limits.quota import Meter, Quota
from holdfast.core.limits.window import Window
from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.engine.limits.breakers import read_windows
from holdfast.store.database import Database, Session
from holdfast.store.sql.limits import guards as guards_sql

HASTEN_BATCH = 5_000


async def read_meters(session: Session, lane_ids: Sequence[int]) -> list[Meter]:
    """Return the quotas over these lanes with their counters, locked until the caller's transaction ends."""
    rows = await guards_sql.lock_quotas(session, list(lane_ids))
    windows = await read_windows(session, [row.quota_id for row in rows])
    return [
        Meter(
            quota_id=row.quota_id,
            quota=_quota(row),
            window=Window(seconds=row.window_seconds, at=row.at, slices=windows.get(row.quota_id, ())),
            lanes=frozenset(row.lanes),
            booked_seconds=row.booked_seconds,
        )
        for row in rows
    ]


async def set_quota(
    engine: Engine,
    tenant_id: int,
    quota: Quota | None,
    *,
    queue: str | None = None,
    action: str | None = None,
    actor: str,
    reason: str,
) -> bool:
    """Set (or remove, with None) the quota of a queue, an action or the tenant. Return False if nothing changed.

    Retries that the old quota postponed become due again and are checked against the new one.
    """
    async with engine.database.transaction() as session:
        is_changed = await _store(session, tenant_id, quota, queue, action, actor=actor, reason=reason)
    if is_changed:
        await _hasten(engine.database, tenant_id, queue, action)
    return is_changed


async def change_quota(
    engine: Engine,
    tenant_id: int,
    change: Callable[[Quota | None], Quota | None],
    *,
    queue: str | None = None,
    actor: str,
    reason: str,
) -> bool:
    """Derive a new quota from the current one of a queue or the tenant, under a lock, so that concurrent changes are
    not lost. Return False if nothing changed."""
    async with engine.database.transaction() as session:
        is_changed = await change_quota_in(session, tenant_id, change, queue=queue, actor=actor, reason=reason)
    if is_changed:
        await _hasten(engine.database, tenant_id, queue, None)
    return is_changed


async def change_quota_in(
    session: Session,
    tenant_id: int,
    change: Callable[[Quota | None], Quota | None],
    *,
    queue: str | None,
    actor: str,
    reason: str,
) -> bool:
    """Change a quota in the caller's transaction. The caller then makes the postponed retries due."""
    await guards_sql.lock_quota_parts(session, tenant_id)
    row = await guards_sql.quota_now(session, tenant_id, queue)
    changed = change(None if row is None else _quota(row))
    return await _store(session, tenant_id, changed, queue, None, actor=actor, reason=reason)


async def _store(
    session: Session,
    tenant_id: int,
    quota: Quota | None,
    queue: str | None,
    action: str | None,
    *,
    actor: str,
    reason: str,
) -> bool:
    row: guards_sql.DeleteQuotaRow | guards_sql.DeclareQuotaRow | None
    if quota is None:
        row = await guards_sql.delete_quota(session, tenant_id, action, queue, actor, reason)
    else:
        limits = (quota.retries, quota.share, quota.window_seconds)
        row = await guards_sql.declare_quota(session, tenant_id, action, queue, *limits, actor, reason)
    if row is None:
        return False
    change = Change(
        verb="quota.lift" if quota is None else "quota.set",
        subject_kind="queue" if queue is not None else "tenant" if action is None else "action",
        subject_id=queue or action or str(tenant_id),
        before=None if row.window_seconds is None else {"quota": str(_quota(row))},
        after=None if quota is None else {"quota": str(quota)},
    )
    await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return True


async def _hasten(database: Database, tenant_id: int, queue: str | None, action: str | None) -> None:
    while await guards_sql.hasten_retries(database, tenant_id, action, queue, HASTEN_BATCH) == HASTEN_BATCH:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """A quota, for display: its scope, its limit, its use in the current window, and when there is capacity again."""

    scope: str
    name: str
    retries: int | None
    share: float | None
    window_seconds: float
    used: int
    allowed: int
    first_attempts: int
    next_slot_seconds: float
    actor: str
    reason: str
    changed_at: datetime

    @property
    def text(self) -> str:
        """Return the quota as text: `100 per minute`."""
        return str(Quota(retries=self.retries, share=self.share, window_seconds=self.window_seconds))


async def list_quotas(database: Database, tenant_id: int, *, lane_id: int | None = None) -> list[QuotaView]:
    """Return every quota of a tenant, or those over one lane."""
    rows = await guards_sql.show_quotas(database, tenant_id, lane_id)
    windows = await read_windows(database, [row.quota_id for row in rows])
    return [_view(row, windows.get(row.quota_id, [])) for row in rows]


async def queue_quotas(session: Session, tenant_id: int) -> dict[str, str]:
    """Return the quotas of a tenant's queues by name, as text: `100 per minute`."""
    return {
        row.name: str(_quota(row))
        for row in await guards_sql.show_quotas(session, tenant_id, None)
        if row.scope == "queue"
    }


def _view(row: guards_sql.ShowQuotasRow, slices: Any) -> QuotaView:
    window = Window(seconds=row.window_seconds, at=row.at, slices=slices)
    meter = Meter(quota_id=row.quota_id, quota=_quota(row), window=window, lanes=frozenset())
    return QuotaView(
        scope=row.scope,
        name=row.name,
        retries=row.retries_max,
        share=row.share,
        window_seconds=row.window_seconds,
        used=window.part,
        allowed=meter.allowance,
        first_attempts=window.whole,
        next_slot_seconds=meter.next_slot_seconds,
        actor=row.actor,
        reason=row.reason,
        changed_at=row.changed_at,
    )


def _quota(
    row: guards_sql.DeleteQuotaRow
    | guards_sql.DeclareQuotaRow
    | guards_sql.LockQuotasRow
    | guards_sql.QuotaNowRow
    | guards_sql.ShowQuotasRow,
) -> Quota:
    assert row.window_seconds is not None, "a stored quota has a window"
    return Quota(retries=row.retries_max, share=row.share, window_seconds=row.window_seconds)
