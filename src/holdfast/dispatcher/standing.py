"""Standing: the state of one task or one run, and nothing else of it; for whoever asked for it before, under a key."""

from __future__ import annotations

from holdfast.store.database import Database
from holdfast.store.statements import sql

_SHOW_TASK = sql("show_task")
_SHOW_RUN = sql("show_run")

NEW = "queued"
"""What is handed in begins with it."""


async def task_state(database: Database, tenant_id: int, task_id: int) -> str:
    """How a task stands that somebody was just told of."""
    row = await database.fetchrow(_SHOW_TASK, task_id, tenant_id)
    return NEW if row is None else str(row["state"])


async def run_state(database: Database, tenant_id: int, run_id: int) -> str:
    """How a run stands that somebody was just told of."""
    row = await database.fetchrow(_SHOW_RUN, run_id, tenant_id)
    return NEW if row is None else str(row["state"])
