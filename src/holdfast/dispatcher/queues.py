"""Queues: pause, resume and limit them, saying who and why; and how full they are.

Counts are bounded. What is live is counted to a limit that lanes share; of history only the newest part is looked at,
and a count that may be short says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from msgspec import UNSET, UnsetType

from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.quotas import list_quotas
from holdfast.errors import Invalid, NotFound
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_LOCK_QUEUE = sql("lock_queue")
_PAUSE = sql("pause_queue")
_RESUME = sql("resume_queue")
_LIMIT = sql("limit_queue")
_NAMES = sql("queue_names")
_FIND_LANES = sql("find_lanes")
_ROWS = sql("queue_rows")
_QUEUED = sql("queued_counts")
_HELD = sql("held_counts")
_ENDED = sql("ended_counts")
_COMPLETED = sql("completed_counts")
_BLOCKED = sql("blocked_counts")

LIVE_COUNT_MAX = 10_000
"""How many queued tasks are counted, of all lanes together, and how many held ones."""
HISTORY_COUNT_MAX = 5_000
BLOCKED_COUNT_MAX = 1_000
RUNNING_MAX = 1_000_000
PER_SECOND_MAX = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue as people see it.

    `completed`, `failed` and `canceled` count the newest of kept history over all queues, `blocked` the nodes of the
    newest open runs, and `queued` is counted to a bound; `partial` names the counts that may therefore be short. None
    where counting history was not asked for. `queued` includes the `delayed`.
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
    """The quota on its retries as people read it: `100 per minute`."""


async def list_queues(
    database: Database, tenant_id: int, *, name: str | None = None, with_history: bool = True
) -> list[QueueView]:
    """Every queue (or one) with its counts."""
    counts: dict[int, dict[str, int]] = {}
    partial: set[str] = set()
    longer: set[int] = set()
    for row in await database.fetch(_QUEUED, tenant_id, LIVE_COUNT_MAX):
        counts.setdefault(row["queue_id"], {})["queued"] = row["queued"]
        longer |= {row["queue_id"]} if row["is_more"] else set()
    held = await database.fetch(_HELD, tenant_id, LIVE_COUNT_MAX)
    for row in held:
        counts.setdefault(row["queue_id"], {}).update(_without_id(row))
    if sum(row["running"] + row["retrying"] + row["delayed"] for row in held) >= LIVE_COUNT_MAX:
        partial |= {"queued", "running", "retrying", "delayed"}
    if with_history:
        partial |= await _count_history(database, tenant_id, counts)
    quotas = {view.name: view.text for view in await list_quotas(database, tenant_id) if view.scope == "queue"}
    history = dict.fromkeys(("completed", "failed", "canceled", "blocked"), 0 if with_history else None)
    return [
        _view(
            row,
            history | counts.get(row["queue_id"], {}),
            partial | ({"queued"} if row["queue_id"] in longer else set()),
            quotas.get(row["name"]),
        )
        for row in await database.fetch(_ROWS, tenant_id, name)
    ]


async def _count_history(database: Database, tenant_id: int, counts: dict[int, dict[str, int]]) -> set[str]:
    """Add what ended and what is blocked, looking at the newest only; answers which counts may be short."""
    partial: set[str] = set()
    totals = {"failed": 0, "canceled": 0}
    for row in await database.fetch(_BLOCKED, tenant_id, BLOCKED_COUNT_MAX):
        counts.setdefault(row["queue_id"], {})["blocked"] = row["blocked"]
        partial |= {"blocked"} if row["is_partial"] else set()
    for row in await database.fetch(_COMPLETED, tenant_id, HISTORY_COUNT_MAX):
        counts.setdefault(row["queue_id"], {})["completed"] = row["completed"]
        partial |= {"completed"} if row["is_partial"] else set()
    for row in await database.fetch(_ENDED, tenant_id, HISTORY_COUNT_MAX):
        counts.setdefault(row["queue_id"], {}).update(_without_id(row))
        totals = {name: total + row[name] for name, total in totals.items()}
    return partial | {name for name, total in totals.items() if total >= HISTORY_COUNT_MAX}


def _without_id(row: Any) -> dict[str, int]:
    return {name: value for name, value in row.items() if name != "queue_id"}


def _view(row: Any, counts: Mapping[str, int | None], partial: set[str], retry_quota: str | None) -> QueueView:
    delayed = counts.get("delayed") or 0
    return QueueView(
        name=row["name"],
        queued=(counts.get("queued") or 0) + delayed,
        running=counts.get("running") or 0,
        retrying=counts.get("retrying") or 0,
        blocked=counts["blocked"],
        delayed=delayed,
        completed=counts["completed"],
        failed=counts["failed"],
        canceled=counts["canceled"],
        partial=tuple(sorted(partial)),
        paused=row["paused_at"] is not None,
        paused_by=row["paused_by"],
        paused_reason=row["paused_reason"],
        paused_at=row["paused_at"],
        max_running=row["max_running"],
        starts_per_second=row["starts_per_second"],
        workers=row["workers"],
        oldest_seconds=row["oldest_seconds"],
        retry_quota=retry_quota,
    )


async def pause(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Pause a queue; False if it was paused already."""
    await require_queue(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        before = await _set(session, tenant_id, name)
        is_changed = bool(await session.fetchval(_PAUSE, tenant_id, name, actor, reason))
        if is_changed:
            await _record(session, "queue.pause", tenant_id, name, before, actor=actor, reason=reason)
    return is_changed


async def resume(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Resume a queue and wake its workers; False if it was not paused."""
    await require_queue(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        before = await _set(session, tenant_id, name)
        is_changed = bool(await session.fetchval(_RESUME, tenant_id, name, actor, reason))
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
    """Set limits of a queue; None lifts one.

    One that is not given is left as it is when this change has its turn, whatever others change at the same time.
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
    await require_queue(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        before = await _set(session, tenant_id, name)
        running = before["max_running"] if max_running is UNSET else max_running
        per_second = before["starts_per_second"] if starts_per_second is UNSET else starts_per_second
        await session.fetch(_LIMIT, tenant_id, name, running, per_second, actor, reason)
        await _record(session, "queue.limit", tenant_id, name, before, actor=actor, reason=reason)
    await _wake(engine, tenant_id, name)


async def _set(session: Session, tenant_id: int, name: str) -> dict[str, Any]:
    """What is set on a queue, under its lock."""
    return dict(await session.fetchrow(_LOCK_QUEUE, tenant_id, name))


async def _record(
    session: Session, verb: str, tenant_id: int, name: str, before: dict[str, Any], *, actor: str, reason: str
) -> None:
    after = await _set(session, tenant_id, name)
    change = Change(verb=verb, subject_kind="queue", subject_id=name, before=before, after=after)
    await audit(session, tenant_id, [change], actor=actor, reason=reason)


async def queue_names(database: Database, tenant_id: int) -> list[str]:
    """The names of the first thousand queues."""
    return [row["name"] for row in await database.fetch(_NAMES, tenant_id)]


async def require_queue(database: Database, tenant_id: int, name: str) -> None:
    names = await queue_names(database, tenant_id)
    if name in names:
        return
    near = get_close_matches(name, names, n=1)
    if near:
        advice = f"Did you mean {near[0]}?"
    elif names:
        advice = f"There are {', '.join(names[:20])}."
    else:
        advice = "A queue appears with its first worker or task."
    raise NotFound(f"There is no queue {name!r}.", code="queue_not_found", advice=advice)


async def _wake(engine: Engine, tenant_id: int, name: str) -> None:
    rows = await engine.database.fetch(_FIND_LANES, tenant_id, name, None)
    engine.bell.ring(lanes=[row["lane_id"] for row in rows])
