"""Pause and resume runs: a paused run and its child runs release no node and no item.

Queued and running tasks continue. Child runs follow in separate transactions, as with a cancellation: a pass pauses
those whose parent is paused and resumes those that were paused with it, so no transaction locks two runs.
"""

from __future__ import annotations

from holdfast.engine.audit import audit
from holdfast.engine.for_each_row import apart
from holdfast.engine.lifecycle.runs.commands import refused, run_change
from holdfast.engine.lifecycle.runs.locked_run import lock_runs
from holdfast.engine.lifecycle.runs.release import advance, take_up_all
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.flows import run_commands as run_commands_sql
from holdfast.store.sql.flows import runs as runs_sql

RUNS_BATCH = 100


async def pause_run(database: Database, tenant_id: int, run_id: int, *, actor: str, reason: str) -> None:
    """Stop releasing nodes of a run, and of the runs it started, until it is resumed."""
    if not await _pause(database, tenant_id, run_id, actor=actor, reason=reason, is_held=False):
        raise await refused(database, tenant_id, run_id, "paused")
    await hold_children_once(database)


async def _pause(database: Database, tenant_id: int, run_id: int, *, actor: str, reason: str, is_held: bool) -> bool:
    async with database.transaction() as session:
        is_done = await run_commands_sql.pause_run(session, run_id, tenant_id, actor, reason, is_held) is not None
        if is_done:
            change = run_change("run.pause", run_id, {"paused": False}, {"paused": True})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return is_done


async def resume_run(
    database: Database, catalog: Catalog, tenant_id: int, run_id: int, *, actor: str, reason: str
) -> Notifications:
    """Resume a paused run and the runs that were paused with it. `Conflict` for a run that was paused with its
    parent."""
    async with database.transaction() as session:
        found = await runs_sql.lock_run(session, run_id, tenant_id)
        if found is not None and found.is_held and found.parent_run_id is not None:
            raise _held(run_id, found.parent_run_id)
        notifications = None if found is None else await _resume(session, catalog, found, actor=actor, reason=reason)
    if notifications is None:
        raise await refused(database, tenant_id, run_id, "resumed")
    return notifications.and_(await free_children_once(database, catalog))


async def _resume(
    session: Session, catalog: Catalog, found: runs_sql.LockRunRow, *, actor: str, reason: str
) -> Notifications | None:
    """Resume a locked run; return None if it is not paused."""
    run_id = found.run_id
    if await run_commands_sql.resume_run(session, run_id, actor, reason) is None:
        return None
    [run] = await lock_runs(session, catalog, [run_id])
    await take_up_all(session, catalog, run)
    notifications = await advance(session, catalog, [run])
    change = run_change("run.resume", run_id, {"paused": True}, {"paused": False})
    await audit(session, found.tenant_id, [change], actor=actor, reason=reason)
    return notifications


async def hold_children_once(database: Database) -> None:
    """Pause the child runs of paused runs, and their child runs in turn."""
    while rows := await run_commands_sql.children_to_hold(database, RUNS_BATCH):
        held = 0
        for row in rows:
            who = {"actor": row.paused_by or "", "reason": row.paused_reason or ""}
            with apart("pause", row):
                held += await _pause(database, row.tenant_id, row.run_id, **who, is_held=True)
        if not held:
            return


async def free_children_once(database: Database, catalog: Catalog) -> Notifications:
    """Resume runs that were paused with their parent, now that the parent is resumed."""
    everything = NO_NOTIFICATIONS
    while rows := await run_commands_sql.children_to_free(database, RUNS_BATCH):
        freed = 0
        for row in rows:
            done: Notifications | None = None
            with apart("resume", row):
                async with database.transaction() as session:
                    found = await runs_sql.lock_run(session, row.run_id, row.tenant_id)
                    who = {"actor": row.paused_by or "", "reason": row.paused_reason or ""}
                    done = await _resume(session, catalog, found, **who) if found and found.is_held else None
            if done is not None:
                freed += 1
                everything = everything.and_(done)
        if not freed:
            break
    return everything


def _held(run_id: int, parent_run_id: int) -> Conflict:
    return Conflict(
        f"Run {run_id} cannot be resumed: it is paused with run {parent_run_id}, which started it.",
        code="run_not_open",
        advice=f"Resume that one: `holdfast run resume {parent_run_id}`.",
        run_id=str(run_id),
    )
