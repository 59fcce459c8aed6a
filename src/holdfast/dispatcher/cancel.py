"""Cancel, retry now and revive: what an operator may ask of a single task. Each leaves its row in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.states import TaskState
from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.release import News, NodeEnd, end_nodes
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_CANCEL = sql("cancel")
_RETRY_NOW = sql("retry_now")
_REVIVE = sql("revive")
_FIND_WINNER = sql("find_winner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """Per task: `canceled` at once or `canceling` (asked to stop). Tasks already over are absent.

    `before` says what each of them was; `news` is to be told after the commit.
    """

    states: dict[int, str]
    before: dict[int, str]
    news: News


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
    """Cancel tasks: unstarted ones end at once, running ones are asked to stop."""
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
    """The same in the caller's transaction, which also records it: here it is only done."""
    rows = await session.fetch(_CANCEL, list(task_ids), tenant_id, grace_seconds, reason, actor)
    ends = [
        NodeEnd(row["task_id"], row["run_id"], row["node_no"], TaskState.CANCELED)
        for row in rows
        if row["run_id"] is not None
    ]
    news = News(set(), [row["task_id"] for row in rows if row["is_awaited"]], [])
    if ends:
        news = news.and_(await end_nodes(session, catalog, ends))
    return Cancellation(
        states={row["task_id"]: row["state"] for row in rows},
        before={row["task_id"]: _was(row) for row in rows},
        news=news,
    )


def _was(row: Any) -> str:
    if row["was"] == "r":
        return "canceling" if row["is_canceling"] else "running"
    return "retrying" if row["is_retrying"] else "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    task_id: int
    attempt: int
    lane_id: int


async def retry(database: Database, tenant_id: int, task_id: int, *, actor: str, reason: str) -> Requeued:
    """Run a failed task again: a waiting retry now, a task that failed for good as a new generation."""
    async with database.transaction() as session:
        row = await session.fetchrow(_RETRY_NOW, task_id, tenant_id)
        before = {"state": "retrying"} if row is not None else {"state": "failed"}
        if row is None:
            row = await session.fetchrow(_REVIVE, task_id, tenant_id, [b"f"], actor, reason)
        if row is not None:
            after = {"state": "queued", "attempt": row["attempt"] + 1, "generation": row["generation"]}
            change = Change(verb="task.retry", subject_kind="task", subject_id=str(task_id), before=before, after=after)
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
            return Requeued(task_id=task_id, attempt=row["attempt"] + 1, lane_id=row["lane_id"])
    winner = await database.fetchrow(_FIND_WINNER, task_id)
    if winner is None or winner["tenant_id"] != tenant_id:
        raise NotFound(f"There is no task {task_id}.", code="execution_not_found")
    # It may have failed only after both statements looked: then it is shown as it was for them.
    state = {"q": "queued", "w": "queued", "v": "queued", "c": "completed", "x": "canceled"}
    raise Conflict(
        f"cannot retry execution in status '{state.get(winner['state'], 'running')}'",
        code="execution_not_retryable",
        task_id=str(task_id),
    )
