"""Queries of workers and actions: which workers are present with which tasks, and which actions workers have
declared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.engine.workers.probe import ProbeView
from holdfast.errors import NotFound
from holdfast.store.database import Database
from holdfast.store.sql.queries import tasks as tasks_sql
from holdfast.store.sql.workers import workers as workers_sql

HELD_SHOWN_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTask:
    """A task that a worker is running."""

    task_id: str
    action: str
    queue: str
    attempt: int
    started_at: datetime
    lease_expires_at: datetime
    is_canceling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker incarnation. `queues` None means every queue; `tasks` is set only where one worker is shown."""

    worker_id: str
    name: str
    version: str
    state: str
    slots: int
    running: int
    queues: list[str] | None
    actions: list[str]
    started_at: datetime
    beat_at: datetime
    beat_age_seconds: float
    ended_at: datetime | None
    health: dict[str, Any]
    probe: ProbeView | None = None
    """The result of its health probe, if it offers a URL."""
    tasks: list[HeldTask] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """The latest declaration of an action by a worker, and how many live workers can run it."""

    name: str
    queue: str
    version: str
    seen_at: datetime
    max_retries: int
    max_attempts: int
    max_losses: int
    timeout_seconds: float | None
    workers: int
    policy: dict[str, Any]
    breaker: str | None = None
    """Closed, open or half-open; None if the action declares no breaker."""


async def list_workers(
    database: Database,
    *,
    limit: int = 100,
    tenant_id: int | None = None,
    before: tuple[bool, int] | None = None,
) -> list[WorkerView]:
    """Return a page of workers of one tenant or of all, present ones first.

    The next page begins `before` the last row, given as whether that worker was present, and its id.
    """
    is_present, number = before or (None, None)
    return [_worker_view(row) for row in await workers_sql.list_workers(database, limit, tenant_id, number, is_present)]


async def show_worker(database: Database, worker_id: int, *, tenant_id: int | None = None) -> WorkerView:
    """Return one worker with its running tasks; `NotFound` if it does not exist or belongs to another tenant."""
    row = await tasks_sql.find_worker(database, worker_id, tenant_id)
    if row is None:
        raise NotFound(
            f"There is no worker {worker_id}.", code="worker_not_found", advice="See `holdfast worker list`."
        )
    held = await tasks_sql.show_worker(database, worker_id, HELD_SHOWN_MAX)
    return _worker_view(row, [HeldTask(**one._asdict()) for one in held])


async def list_actions(database: Database, tenant_id: int, *, name: str | None = None) -> list[ActionView]:
    """Return every action (or one) that a worker has declared."""
    rows = await tasks_sql.list_actions(database, tenant_id, name)
    return [ActionView(**{**row._asdict(), "policy": json.loads(row.policy)}) for row in rows]


def _worker_view(
    row: tasks_sql.FindWorkerRow | workers_sql.ListWorkersRow, tasks: list[HeldTask] | None = None
) -> WorkerView:
    found = row._asdict()
    found |= {"worker_id": str(found["worker_id"]), "health": json.loads(found["health"])}
    url, *probed = (found.pop(name) for name in ("probe_url", "checked_at", "is_healthy", "failures", "detail"))
    return WorkerView(**found, probe=None if url is None else _probe_view(url, *probed), tasks=tasks)


def _probe_view(
    url: str, checked_at: datetime | None, is_healthy: bool | None, failures: int | None, detail: str | None
) -> ProbeView:
    return ProbeView(
        url=url, checked_at=checked_at, is_healthy=is_healthy, failures=failures or 0, detail=detail or "not asked yet"
    )
