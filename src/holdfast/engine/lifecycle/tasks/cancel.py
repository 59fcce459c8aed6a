"""Cancel tasks: unstarted tasks end at once, running ones are asked to stop. Each cancellation is audited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.tasks.states import TaskState
from holdfast.engine.audit import Change, audit
from holdfast.engine.lifecycle.runs.release import NodeEnd, end_nodes
from holdfast.engine.notifications import Notifications
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.session import first
from holdfast.store.sql.queries import explain as explain_sql
from holdfast.store.sql.tasks import cancel as cancel_sql
from holdfast.store.sql.tasks import results as results_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """The result per task: `canceled` at once, or `canceling` (asked to stop). Tasks that had ended are absent.

    `before` has the previous state of each task; `notifications` are to be published after the commit.
    """

    states: dict[int, str]
    before: dict[int, str]
    notifications: Notifications


async def cancel(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    task_ids: Sequence[int],
    *,
    grace_seconds: float,
    reason: str,
    actor: str,
) -> Cancellation:
    """Cancel tasks and audit it: unstarted tasks end at once, running ones are asked to stop."""
    async with database.transaction() as session:
        done = await cancel_in(
            session, catalog, tenant_id, task_ids, grace_seconds=grace_seconds, reason=reason, actor=actor
        )
        changes = [
            Change(
                verb="task.cancel",
                subject_kind="task",
                subject_id=str(task_id),
                before={"state": done.before[task_id]},
                after={"state": state},
            )
            for task_id, state in sorted(done.states.items())
        ]
        await audit(session, tenant_id, changes, actor=actor, reason=reason)
    return done


async def cancel_in(
    session: Session,
    catalog: Catalog,
    tenant_id: int,
    task_ids: Sequence[int],
    *,
    grace_seconds: float,
    reason: str,
    actor: str,
) -> Cancellation:
    """Cancel tasks in the caller's transaction. The caller writes the audit records."""
    rows = await cancel_sql.cancel(session, list(task_ids), tenant_id, grace_seconds, reason, actor)
    ends: list[NodeEnd] = [
        (row.task_id, row.run_id, row.node_no, TaskState.CANCELED) for row in rows if row.run_id is not None
    ]
    stops = frozenset(row.worker_id for row in rows if row.worker_id is not None)
    notifications = Notifications(set(), [row.task_id for row in rows if row.is_awaited], [], stops=stops)
    if ends:
        notifications = notifications.and_(await end_nodes(session, catalog, ends))
    return Cancellation(
        states={row.task_id: row.state for row in rows},
        before={row.task_id: _was(row) for row in rows},
        notifications=notifications,
    )


async def not_cancelable(database: Database, tenant_id: int, task_id: int) -> HoldfastError:
    """Build the error for a task that `cancel` left alone: it ended, it has not begun, or it does not exist."""
    row = first(await results_sql.results(database, [task_id], tenant_id))
    if row is not None:
        return Conflict(f"Task {task_id} is already {row.state}.", code="task_over", state=row.state)
    place = await explain_sql.locate_task(database, task_id, tenant_id)
    if place is None:
        return NotFound(f"There is no task {task_id}.", code="task_not_found")
    is_run = place.node_no is None
    return Conflict(
        f"{task_id} is a run." if is_run else f"Task {task_id} has not begun and is canceled only with its run.",
        code="not_a_task" if is_run else "task_not_begun",
        advice=f"Use `holdfast run cancel {place.run_id}`.",
        run_id=str(place.run_id),
    )


def _was(row: cancel_sql.CancelRow) -> str:
    if row.was == "r":
        return "canceling" if row.is_canceling else "running"
    return "retrying" if row.is_retrying else "queued"
