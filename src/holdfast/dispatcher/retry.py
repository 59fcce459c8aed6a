"""An operator's retry of one task: a waiting retry now, a failed task again while its generation has budget left.

It only requeues; there is one dispatch path. A generation whose budget is spent needs a re-drive through its dead
letter: the governed click.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.dispatching import RETRY, dispatching
from holdfast.dispatcher.letters import By, Requeued, redrive_task
from holdfast.dispatcher.news import News
from holdfast.dispatcher.once import Once
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_RETRY_NOW = sql("retry_now")
_SHOW_TASK = sql("show_task")


async def retry(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    *,
    actor: str,
    reason: str,
    once: Once | None = None,
    answer: Callable[[Requeued], Any] = lambda done: done,
) -> Requeued:
    """Run a failed task again, checked in this order.

    `NotFound` `execution_not_found`; `Conflict` `execution_not_retryable` unless it failed; `Conflict`
    `retry_budget_exhausted`, naming the dead letter, when its generation has spent its budget. `DispatchFailed` if the
    database failed it as a whole.
    Asked `once`, what `answer` makes of it is kept with it, and answers a repetition.
    """
    async with dispatching(database, RETRY, f"The retry of task {task_id}") as session:
        if once is not None:
            await once.begin(session)
        waiting = await session.fetchrow(_RETRY_NOW, task_id, tenant_id)
        if waiting is not None:
            news = News({waiting["lane_id"]}, [], [])
            done: Requeued | None = Requeued(task_id, waiting["attempt"] + 1, waiting["generation"], news)
        else:
            by = By(actor, reason or "operator retry")
            done = await redrive_task(session, catalog, tenant_id, task_id, by, keeps_budget=True)
        if done is None:
            raise await not_retryable(session, tenant_id, task_id)
        change = requeued("task.retry", done, before="failed" if waiting is None else "retrying")
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
        if once is not None:
            await once.keep(session, answer(done))
    return done


def requeued(verb: str, done: Requeued, *, before: str) -> Change:
    """The audited change that put a task back into its queue."""
    after = {"state": "queued", "attempt": done.attempt, "generation": done.generation}
    return Change(verb=verb, subject_kind="task", subject_id=str(done.task_id), before={"state": before}, after=after)


async def not_retryable(session: Session, tenant_id: int, task_id: int) -> HoldfastError:
    """Say where a task stands that cannot be retried; a node that never became a task stands somewhere too."""
    row = await session.fetchrow(_SHOW_TASK, task_id, tenant_id)
    if row is None:
        return NotFound(f"There is no task {task_id}.", code="execution_not_found")
    return Conflict(
        f"cannot retry execution in status '{row['state']}'",
        code="execution_not_retryable",
        advice=_advice(row, task_id),
        task_id=str(task_id),
    )


def _advice(row: Any, task_id: int) -> str:
    if row["state"] == "retrying":
        return f"It is retried by itself; at once with `holdfast task retry {task_id}`."
    if row["run_id"] is not None and row["state"] in ("failed", "upstream_failed", "skipped", "blocked"):
        return f"It goes with its run: `holdfast run retry {row['run_id']}`."
    # It may have failed only after the others looked.
    return f"See `holdfast task why {task_id}`."
