"""Cancel, retry now and revive: what an operator may ask of a single task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import Conflict, NotFound
from holdfast.store.database import Database
from holdfast.store.statements import sql

_CANCEL = sql("cancel")
_RETRY_NOW = sql("retry_now")
_REVIVE = sql("revive")
_FIND_WINNER = sql("find_winner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """Per task: `canceled` at once or `canceling` (asked to stop). Tasks already over are absent."""

    states: dict[int, str]
    awaited: list[int]


async def cancel(
    database: Database,
    tenant_id: int,
    task_ids: Sequence[int],
    *,
    grace_seconds: float,
    reason: str,
    actor: str,
) -> Cancellation:
    rows = await database.fetch(_CANCEL, list(task_ids), tenant_id, grace_seconds, reason, actor)
    return Cancellation(
        states={row["task_id"]: row["state"] for row in rows},
        awaited=[row["task_id"] for row in rows if row["is_awaited"]],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    task_id: int
    attempt: int
    lane_id: int


async def retry(database: Database, tenant_id: int, task_id: int, *, actor: str, reason: str) -> Requeued:
    """Run a failed task again: a waiting retry now, a task that failed for good as a new generation."""
    row = await database.fetchrow(_RETRY_NOW, task_id, tenant_id)
    if row is None:
        row = await database.fetchrow(_REVIVE, task_id, tenant_id, [b"f"], actor, reason)
    if row is not None:
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
