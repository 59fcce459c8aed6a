"""Standing: where one task or one run is, and nothing else of it: for those who asked for it before, under a key, and
for those who look every moment how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.core.values.bounds import no_run
from holdfast.store.database import Database
from holdfast.store.statements import sql

_SHOW_TASK = sql("show_task")
_SHOW_RUN = sql("show_run")
_RUN_PROGRESS = sql("run_progress")

NEW = "queued"
"""What is handed in begins with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Where a run is: `nodes` in all, of which `pending` are not over."""

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
    """How far a run is, and since when."""

    created_at: datetime
    ended_at: datetime | None
    at: datetime


async def task_state(database: Database, tenant_id: int, task_id: int) -> str:
    """How a task stands that somebody was just told of."""
    row = await database.fetchrow(_SHOW_TASK, task_id, tenant_id)
    return NEW if row is None else str(row["state"])


async def run_state(database: Database, tenant_id: int, run_id: int) -> str:
    """How a run stands that somebody was just told of."""
    row = await database.fetchrow(_SHOW_RUN, run_id, tenant_id)
    return NEW if row is None else str(row["state"])


async def run_progress(database: Database, tenant_id: int, run_id: int) -> RunProgress:
    """How far a run is, without a look at its nodes; `NotFound` without such a run."""
    row = await database.fetchrow(_RUN_PROGRESS, run_id, tenant_id)
    if row is None:
        raise no_run(run_id)
    return RunProgress(**row)
