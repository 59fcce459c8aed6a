"""Cancel: unstarted tasks end at once, running ones are asked to stop. Each leaves its row in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.states import TaskState
from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.release import News, NodeEnd, end_nodes
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_CANCEL = sql("cancel")


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
