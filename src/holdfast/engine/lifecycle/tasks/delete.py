"""Delete a failed task, or the whole run that it belongs to, with all its records.

Failures are kept until an operator deletes them. A reason is required, and the deletion is recorded in the audit log in
the same transaction. Events stay until their retention ends.
"""

from __future__ import annotations

import msgspec

from holdfast.core.values.bounds import required_reason
from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.dead_letters.requeue import lock_run_dead_letters
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.store.database import Session
from holdfast.store.sql.dead_letters import commands as commands_sql
from holdfast.store.sql.queries import counts as counts_sql
from holdfast.store.sql.queries import tasks as tasks_sql

DELETE_BATCH = 100
"""How many tasks one transaction deletes; a run among them is deleted with all its tasks."""


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """How much was deleted, and how many tasks are left because their run has not ended."""

    tasks: int = 0
    runs: int = 0
    letters: int = 0
    left: int = 0


async def delete_task(engine: Engine, tenant_id: int, task_id: int, *, actor: str, reason: str) -> Deleted:
    """Delete one failed task; a node is deleted with its whole run, which must have ended."""
    why = required_reason(reason)
    async with engine.database.transaction() as session:
        dead = await commands_sql.dead_task(session, task_id, tenant_id)
        if dead is None or dead.state != "f":
            raise await _not_dead(session, tenant_id, task_id)
        done = await _delete(session, tenant_id, [(task_id, dead.run_id)], actor, why)
        if done.left:
            raise Conflict(
                f"Task {task_id} is a node of run {dead.run_id}, which is not over.",
                code="run_not_over",
                advice=f"End it first: `holdfast dead ignore --task {task_id} --abandon --reason TEXT`.",
                run_id=str(dead.run_id),
            )
    return done


async def delete_group(engine: Engine, tenant_id: int, fingerprint: str, *, actor: str, reason: str) -> Deleted:
    """Delete the failed tasks of a group, page by page. Runs that have not ended are left, with their tasks."""
    why = required_reason(reason)
    after, everything = 0, Deleted()
    while True:
        async with engine.database.transaction() as session:
            page = await commands_sql.dead_tasks_of_group(session, tenant_id, fingerprint, after, DELETE_BATCH)
            if not page:
                break
            which = [(row.task_id, row.run_id) for row in page]
            done = await _delete(session, tenant_id, which, actor, why)
        after = page[-1].dead_letter_id
        everything = Deleted(
            tasks=everything.tasks + done.tasks,
            runs=everything.runs + done.runs,
            letters=everything.letters + done.letters,
            left=everything.left + done.left,
        )
    if not after:
        raise NotFound(
            f"There is no dead task with the fingerprint {fingerprint!r}.",
            code="dead_group_not_found",
            advice="See `holdfast dead groups`.",
        )
    return everything


async def _delete(
    session: Session, tenant_id: int, which: list[tuple[int, int | None]], actor: str, reason: str
) -> Deleted:
    """Delete tasks and runs in the caller's transaction. Dead letters are locked first, as everywhere, then the runs
    and their parents, so that no concurrent transaction re-drives them."""
    run_ids = sorted({run_id for _, run_id in which if run_id is not None})
    task_ids = sorted(task_id for task_id, run_id in which if run_id is None)
    await lock_run_dead_letters(session, tenant_id, run_ids, task_ids)
    await commands_sql.lock_families(session, run_ids, tenant_id)
    if run_ids:
        # Count the completed tasks of these runs first, so that all of them can be subtracted from the counters.
        await counts_sql.count_completed(session, True)
    rows = await commands_sql.delete_dead(session, task_ids, tenant_id, run_ids)
    await audit(session, tenant_id, [_change(row) for row in rows], actor=actor, reason=reason)
    gone = {(row.kind, row.id) for row in rows}
    left = [one for one, run_id in which if (("task", one) if run_id is None else ("run", run_id)) not in gone]
    runs = sum(kind == "run" for kind, _ in gone)
    return Deleted(tasks=len(which) - len(left), runs=runs, letters=sum(row.letters for row in rows), left=len(left))


def _change(row: commands_sql.DeleteDeadRow) -> Change:
    before = {"state": row.state, "letters": row.letters}
    return Change(
        verb="dead.delete",
        subject_kind=row.kind,
        subject_id=str(row.id),
        before=before,
        after={"state": "deleted", "letters": 0},
    )


async def _not_dead(session: Session, tenant_id: int, task_id: int) -> HoldfastError:
    row = await tasks_sql.show_task(session, task_id, tenant_id)
    if row is None:
        return NotFound(f"There is no task {task_id}.", code="task_not_found")
    return Conflict(
        f"Task {task_id} is {row.state}; only what failed for good is deleted by hand.",
        code="task_not_dead",
        advice="Everything else goes with history by itself (`HOLDFAST_RETENTION_DAYS`).",
        state=row.state,
    )
