"""Queues: pause, resume and limit them, with actor and reason, and list them with their task counts.

Counts are bounded (see `counts`); a count that may be too low is named in `partial`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from msgspec import UNSET, UnsetType

from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.engine.limits.quotas import queue_quotas
from holdfast.engine.queries.counts import GLANCED, LISTED, Counts, count_queues
from holdfast.errors import Invalid, NotFound
from holdfast.store.database import Database, Session
from holdfast.store.sql.limits import queues as queues_sql
from holdfast.store.sql.queries import tasks as tasks_sql
from holdfast.store.sql.tasks import lanes as lanes_sql

RUNNING_MAX = 1_000_000
PER_SECOND_MAX = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue, for display.

    Counts have bounds far above what most queues reach; `partial` names those that may be too low. `completed`,
    `failed` and `canceled` count the kept history; they and `blocked` are None if history was not requested. `queued`
    includes the `delayed`.
    """

    name: str
    queued: int
    running: int
    retrying: int
    blocked: int | None
    delayed: int
    completed: int | None
    failed: int | None
    canceled: int | None
    partial: tuple[str, ...]
    paused: bool
    paused_by: str | None
    paused_reason: str | None
    paused_at: datetime | None
    max_running: int | None
    starts_per_second: float | None
    workers: int
    oldest_seconds: float | None
    retry_quota: str | None = None
    """The quota on its retries as text: `100 per minute`."""


async def list_queues(
    database: Database, tenant_id: int, *, name: str | None = None, with_history: bool = True
) -> list[QueueView]:
    """Return every queue (or one) with its counts; without history, smaller bounds apply."""
    bounds = LISTED if with_history else GLANCED
    async with database.transaction() as session:
        counts = await count_queues(session, tenant_id, bounds, with_history=with_history)
        rows = await tasks_sql.queue_rows(session, tenant_id, name)
        quotas = await queue_quotas(session, tenant_id)
    return [_view(row, counts, quotas.get(row.name), with_history=with_history) for row in rows]


def _view(row: tasks_sql.QueueRowsRow, counts: Counts, retry_quota: str | None, *, with_history: bool) -> QueueView:
    count = counts.of(row.queue_id)
    history = {name: count[name] if with_history else None for name in ("blocked", "completed", "failed", "canceled")}
    return QueueView(
        name=row.name,
        queued=count["queued"] + count["delayed"],
        running=count["running"],
        retrying=count["retrying"],
        delayed=count["delayed"],
        **history,
        partial=tuple(sorted(counts.short(row.queue_id))),
        paused=row.paused_at is not None,
        paused_by=row.paused_by,
        paused_reason=row.paused_reason,
        paused_at=row.paused_at,
        max_running=row.max_running,
        starts_per_second=row.starts_per_second,
        workers=row.workers,
        oldest_seconds=row.oldest_seconds,
        retry_quota=retry_quota,
    )


async def pause(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Pause a queue, or change the reason of a paused one. Return False if nothing changed."""
    await require_queue(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        before = await _set(session, tenant_id, name)
        is_changed = bool(await queues_sql.pause_queue(session, tenant_id, name, actor, reason))
        if is_changed:
            await _record(session, "queue.pause", tenant_id, name, before, actor=actor, reason=reason)
    return is_changed


async def resume(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Resume a queue and wake its workers; return False if it was not paused."""
    await require_queue(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        before = await _set(session, tenant_id, name)
        is_changed = bool(await queues_sql.resume_queue(session, tenant_id, name, actor, reason))
        if is_changed:
            await _record(session, "queue.resume", tenant_id, name, before, actor=actor, reason=reason)
    await _wake(engine, tenant_id, name)
    return is_changed


async def limit(
    engine: Engine,
    tenant_id: int,
    name: str,
    *,
    max_running: int | UnsetType | None = UNSET,
    starts_per_second: float | UnsetType | None = UNSET,
    actor: str,
    reason: str,
) -> None:
    """Set limits of a queue; None removes one.

    The queue is created if it does not exist: limits may be set before the first worker or task. A limit that is not
    given keeps its value, even if another transaction changes it concurrently.
    """
    if isinstance(max_running, int) and not 1 <= max_running <= RUNNING_MAX:
        raise Invalid(
            f"A queue cannot be limited to {max_running} running tasks.",
            code="invalid_limit",
            advice=f"Choose 1 to {RUNNING_MAX}, or pause the queue.",
        )
    if isinstance(starts_per_second, int | float) and not 0 < starts_per_second <= PER_SECOND_MAX:
        raise Invalid(
            f"A queue cannot be limited to {starts_per_second:g} starts per second.",
            code="invalid_limit",
            advice="Choose a number above 0, or pause the queue.",
        )
    await ensure(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        before = await _set(session, tenant_id, name)
        running = before["max_running"] if max_running is UNSET else max_running
        per_second = before["starts_per_second"] if starts_per_second is UNSET else starts_per_second
        await queues_sql.limit_queue(session, tenant_id, name, running, per_second, actor, reason)
        await _record(session, "queue.limit", tenant_id, name, before, actor=actor, reason=reason)
    await _wake(engine, tenant_id, name)


async def ensure(database: Database, tenant_id: int, name: str) -> None:
    """Create a queue if it does not exist."""
    await lanes_sql.ensure_queue(database, tenant_id, name)


async def _set(session: Session, tenant_id: int, name: str) -> dict[str, Any]:
    """Return the settings of a queue, under its lock."""
    row = await queues_sql.lock_queue(session, tenant_id, name)
    return {} if row is None else row._asdict()


async def _record(
    session: Session, verb: str, tenant_id: int, name: str, before: dict[str, Any], *, actor: str, reason: str
) -> None:
    after = await _set(session, tenant_id, name)
    change = Change(verb=verb, subject_kind="queue", subject_id=name, before=before, after=after)
    await audit(session, tenant_id, [change], actor=actor, reason=reason)


async def queue_names(database: Database, tenant_id: int) -> list[str]:
    """Return the names of the first thousand queues."""
    return [row.name for row in await queues_sql.queue_names(database, tenant_id)]


async def require_queue(database: Database, tenant_id: int, name: str) -> None:
    """Raise `NotFound`, with the nearest name, if there is no such queue."""
    if await queues_sql.find_queue(database, tenant_id, name):
        return
    names = await queue_names(database, tenant_id)
    near = get_close_matches(name, names, n=1)
    if near:
        advice = f"Did you mean {near[0]}?"
    elif names:
        advice = f"There are {', '.join(names[:20])}."
    else:
        advice = "A queue appears with its first worker or task."
    raise NotFound(f"There is no queue {name!r}.", code="queue_not_found", advice=advice)


async def _wake(engine: Engine, tenant_id: int, name: str) -> None:
    rows = await tasks_sql.find_lanes(engine.database, tenant_id, name, None)
    engine.notifier.notify(lanes=[row.lane_id for row in rows])
