"""Retry one task on an operator's request: queue exactly the next attempt.

A waiting retry becomes due at once. A failed task continues in its generation and spends one more retry of its budget;
its dead letter is closed as superseded, so that the sweep does not dispatch it too. A generation that has used all its
attempts is refused: a re-drive of the dead letter starts a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.dead_letters.dead_letter import is_retry_ceiling_reached
from holdfast.engine.audit import Change, audit
from holdfast.engine.dispatch_transaction import RETRY, dispatch_transaction
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.lifecycle.dead_letters.requeue import (
    LockedDeadTask,
    Requeued,
    RequeueRequest,
    lock_dead_task,
    with_its_run,
)
from holdfast.engine.lifecycle.runs.redrive import redrive_run
from holdfast.engine.notifications import Notifications
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.dead_letters import commands as commands_sql
from holdfast.store.sql.dead_letters import sweep as sweep_sql
from holdfast.store.sql.queries import tasks as tasks_sql
from holdfast.store.sql.tasks import cancel as cancel_sql


async def retry(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    *,
    actor: str,
    reason: str,
    once: IdempotentRequest | None = None,
    answer: Callable[[Requeued], Any] = lambda done: done,
) -> Requeued:
    """Queue the next attempt of a failed or retrying task.

    Checked in this order: `NotFound` `execution_not_found`; `Conflict` `execution_not_retryable` unless it failed;
    `Conflict` `retry_budget_exhausted`, with the dead letter, when its generation has had `max_retries + 1` attempts.
    `DispatchFailed` if the database rejected the whole transaction. With `once`, the value of `answer` is stored under
    the idempotency key and returned to a repetition.
    """
    async with dispatch_transaction(database, RETRY, f"The retry of task {task_id}") as session:
        if once is not None:
            await once.begin(session)
        waiting = await cancel_sql.retry_now(session, task_id, tenant_id)
        if waiting is not None:
            notifications = Notifications({waiting.lane_id}, [], [])
            done: Requeued | None = Requeued(task_id, waiting.attempt + 1, waiting.generation, notifications)
        else:
            by = RequeueRequest(actor, reason or "operator retry")
            done = await _retry_failed(session, catalog, tenant_id, task_id, by)
        if done is None:
            raise await not_retryable(session, tenant_id, task_id)
        change = requeued("task.retry", done, before="failed" if waiting is None else "retrying")
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
        if once is not None:
            await once.keep(session, answer(done))
    return done


async def _retry_failed(
    session: Session, catalog: Catalog, tenant_id: int, task_id: int, by: RequeueRequest
) -> Requeued | None:
    """Queue the next attempt of a failed task; return None if it has not failed for good."""
    found = await lock_dead_task(session, catalog, tenant_id, task_id)
    if found is None:
        return None
    dead = found.row
    if is_retry_ceiling_reached(retries=dead.retries, losses=dead.losses, max_retries=dead.max_retries):
        raise _budget_exhausted(task_id, found.newest)
    if dead.run_id is not None:
        return await _retry_node(session, catalog, tenant_id, found, by)
    rows = await sweep_sql.revive_tasks(session, [task_id], tenant_id, by.actor, by.reason, None, True)
    if not rows:
        return None
    await _supersede(session, found.letters, dead.attempt + 1, by)
    notifications = Notifications({row.lane_id for row in rows}, [], [])
    return Requeued(task_id, dead.attempt + 1, dead.generation, notifications)


async def _retry_node(
    session: Session, catalog: Catalog, tenant_id: int, found: LockedDeadTask, by: RequeueRequest
) -> Requeued | None:
    """Queue the next attempt of a failed node, reset the nodes downstream of it and reopen its run.

    An item of a map is retried together with the other failed items of its node. The run begins another generation,
    because its end was recorded; the retry budgets continue where they were.
    """
    dead, task_id = found.row, found.row.task_id
    run_id, node_no = dead.run_id, dead.node_no
    assert run_id is not None and node_no is not None
    spent = await sweep_sql.spent_retries(session, run_id, [node_no], tenant_id)
    try:
        done = await redrive_run(session, catalog, tenant_id, run_id, actor=by.actor, reason=by.reason, only=node_no)
    except Conflict as error:
        raise with_its_run(task_id, False, error.detail) from error
    if node_no not in done.numbers:
        raise with_its_run(task_id, False, f"Other items of its node in run {run_id} are under way.")
    await sweep_sql.carry_budgets(
        session, [row.task_id for row in spent], [row.retries for row in spent], [row.losses for row in spent]
    )
    superseded = [row for row in found.held if row.node_no in done.numbers]
    await _supersede(session, superseded, dead.attempt + 1, by)
    return Requeued(task_id, dead.attempt + 1, dead.generation + 1, done.notifications)


async def _supersede(
    session: Session,
    letters: Sequence[commands_sql.LockDeadLettersOfRunsRow | commands_sql.LockDeadLettersOfTaskRow],
    attempt: int,
    by: RequeueRequest,
) -> None:
    ids = [row.dead_letter_id for row in letters]
    await sweep_sql.supersede_dead_letters(session, ids, by.actor, f"superseded by attempt {attempt}: {by.reason}")


def _budget_exhausted(task_id: int, letter: commands_sql.LockDeadLettersOfTaskRow | None) -> Conflict:
    return Conflict(
        "retry budget exhausted",
        code="retry_budget_exhausted",
        advice=f"Start a new generation: `holdfast dead redrive --task {task_id} --reason TEXT`.",
        task_id=str(task_id),
        dead_letter_id=None if letter is None else str(letter.dead_letter_id),
    )


def requeued(verb: str, done: Requeued, *, before: str) -> Change:
    """Return the audit record of putting a task back into its queue."""
    after = {"state": "queued", "attempt": done.attempt, "generation": done.generation}
    return Change(verb=verb, subject_kind="task", subject_id=str(done.task_id), before={"state": before}, after=after)


async def not_retryable(session: Session, tenant_id: int, task_id: int) -> HoldfastError:
    """Build the error for a task that cannot be retried, with its state. It covers nodes that never became a task."""
    row = await tasks_sql.show_task(session, task_id, tenant_id)
    if row is None:
        return NotFound(f"There is no task {task_id}.", code="execution_not_found")
    return Conflict(
        f"cannot retry execution in status '{row.state}'",
        code="execution_not_retryable",
        advice=_advice(row, task_id),
        task_id=str(task_id),
    )


def _advice(row: tasks_sql.ShowTaskRow, task_id: int) -> str:
    if row.state == "retrying":
        return f"It is retried by itself; at once with `holdfast task retry {task_id}`."
    if row.run_id is not None and row.state in ("failed", "upstream_failed", "skipped", "blocked"):
        return f"It goes with its run: `holdfast run retry {row.run_id}`."
    # It may have failed only after the other statements read it.
    return f"See `holdfast task why {task_id}`."
