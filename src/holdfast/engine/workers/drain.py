"""Drain: ask one worker to finish its running tasks and claim no more."""

from __future__ import annotations

from holdfast.engine.audit import Change, audit
from holdfast.engine.queries.workers import WorkerView, show_worker
from holdfast.errors import Conflict
from holdfast.store.database import Database
from holdfast.store.session import first
from holdfast.store.sql.workers import workers as workers_sql


async def drain_worker(
    database: Database, worker_id: int, *, actor: str, reason: str, tenant_id: int | None = None
) -> WorkerView:
    """Drain a worker; `NotFound` if there is none, `Conflict` if it has left. The worker learns it at its next
    heartbeat.

    With `tenant_id`, a worker of another tenant is not found. The change is audited in the chain of the worker's
    tenant.
    """
    await show_worker(database, worker_id, tenant_id=tenant_id)
    async with database.transaction() as session:
        if drained := first(await workers_sql.drain_worker(session, worker_id)):
            change = Change(
                verb="worker.drain",
                subject_kind="worker",
                subject_id=str(worker_id),
                before={"state": "active"},
                after={"state": "draining"},
            )
            await audit(session, drained.tenant_id, [change], actor=actor, reason=reason)
    view = await show_worker(database, worker_id)
    if view.state != "draining":
        raise Conflict(f"Worker {worker_id} is {view.state}.", code="worker_not_active", state=view.state)
    return view
