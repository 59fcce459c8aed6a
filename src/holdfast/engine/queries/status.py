"""The status of one task or run, and nothing else: for repeated requests under a key, and for callers that poll its
progress."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.core.values.bounds import no_run
from holdfast.store.database import Database
from holdfast.store.sql.queries import runs as runs_sql
from holdfast.store.sql.queries import tasks as tasks_sql

NEW = "queued"
"""The state of a new task or run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of a run: `nodes` in all, of which `pending` have not ended."""

    run_id: str
    flow: str
    version: int
    state: str
    nodes: int
    pending: int
    active: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress(RunStatus):
    """The progress of a run, with its times."""

    created_at: datetime
    ended_at: datetime | None
    at: datetime


async def task_state(database: Database, tenant_id: int, task_id: int) -> str:
    """Return the state of a task whose id was just returned to a caller."""
    row = await tasks_sql.show_task(database, task_id, tenant_id)
    return NEW if row is None else str(row.state)


async def run_state(database: Database, tenant_id: int, run_id: int) -> str:
    """Return the state of a run whose id was just returned to a caller."""
    row = await runs_sql.show_run(database, run_id, tenant_id)
    return NEW if row is None else str(row.state)


async def run_progress(database: Database, tenant_id: int, run_id: int) -> RunProgress:
    """Return the progress of a run without reading its nodes; raise `NotFound` if it does not exist."""
    row = await runs_sql.run_progress(database, run_id, tenant_id)
    if row is None:
        raise no_run(run_id)
    return RunProgress(**row._asdict())
