"""Cancel: unstarted tasks end at once, running ones are asked to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.states import TaskState
from holdfast.dispatcher.release import News, NodeEnd, end_nodes
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_CANCEL = sql("cancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """Per task: `canceled` at once or `canceling` (asked to stop). Tasks already over are absent.

    `news` is to be told after the commit.
    """

    states: dict[int, str]
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
        return await cancel_in(
            session, catalog, tenant_id, task_ids, grace_seconds=grace_seconds, reason=reason, actor=actor
        )


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
    """The same in the caller's transaction."""
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
        news=news,
    )
