"""Drain: ask one worker to finish what it holds and take no more."""

from __future__ import annotations

from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.look import WorkerView, show_worker
from holdfast.errors import Conflict
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import Database
from holdfast.store.statements import sql

_DRAIN_WORKER = sql("drain_worker")


async def drain_worker(database: Database, worker_id: int, *, actor: str, reason: str) -> WorkerView:
    """Drain a worker; `NotFound` if there is none, `Conflict` if it already left. It hears of it at its next beat.

    Workers belong to no tenant: the change is recorded in the default tenant's chain.
    """
    async with database.transaction() as session:
        if await session.fetch(_DRAIN_WORKER, worker_id):
            change = Change(
                verb="worker.drain",
                subject_kind="worker",
                subject_id=str(worker_id),
                before={"state": "active"},
                after={"state": "draining"},
            )
            await audit(session, DEFAULT_TENANT_ID, [change], actor=actor, reason=reason)
    view = await show_worker(database, worker_id)
    if view.state != "draining":
        raise Conflict(f"Worker {worker_id} is {view.state}.", code="worker_not_active", state=view.state)
    return view
