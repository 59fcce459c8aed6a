"""Cancel and retry runs. Each command is audited in its own transaction.

Each command locks the run first and then never waits for a task. Running tasks are asked to stop by a flag, in separate
transactions, and a maintenance pass repeats this for tasks that a crash left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from holdfast.core.tasks.states import ENDS, TaskState
from holdfast.core.values.bounds import no_run
from holdfast.engine.audit import Change, audit
from holdfast.engine.dispatch_transaction import RETRY, dispatch_transaction
from holdfast.engine.effects.gate import EffectView, undone_effects, unknown_effects
from holdfast.engine.for_each_row import all_in_turn, apart
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.lifecycle.dead_letters.requeue import RequeueRequest, dispatch_run, lock_run_dead_letters
from holdfast.engine.lifecycle.runs.items import cancel_unreleased_items
from holdfast.engine.lifecycle.runs.locked_run import lock_runs
from holdfast.engine.lifecycle.runs.redrive import Redriven, plan_redrive
from holdfast.engine.lifecycle.runs.release import advance
from holdfast.engine.lifecycle.tasks.cancel import cancel_in
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.flows import run_commands as run_commands_sql
from holdfast.store.sql.flows import runs as runs_sql

CANCEL_BATCH = 1_000
RUNS_BATCH = 100
NAMES_MAX = 100
ACTOR = "holdfast:run-cancel"


async def cancel_run(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    *,
    actor: str,
    reason: str,
    grace_seconds: float,
) -> Notifications:
    """Cancel a run: release nothing more, end what waits, and ask running tasks to stop."""
    async with database.transaction() as session:
        done = await cancel_run_in(session, catalog, tenant_id, run_id, actor=actor, reason=reason)
        if done is not None:
            await audit(session, tenant_id, [done.change], actor=actor, reason=reason)
    if done is None:
        raise await refused(database, tenant_id, run_id, "canceled")
    return await done.ask_tasks(database, catalog, tenant_id, actor, reason, grace_seconds)


class CanceledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was canceled in a transaction: its audit record, and whether its tasks have to be asked to stop."""

    run_id: int
    nodes: int
    has_tasks: bool
    change: Change
    notifications: Notifications

    async def ask_tasks(
        self, database: Database, catalog: Catalog, tenant_id: int, actor: str, reason: str, grace_seconds: float
    ) -> Notifications:
        """Cancel the tasks of the run, after the commit. A maintenance pass does it if this process does not."""
        if not self.has_tasks:
            return self.notifications
        who = (actor, reason, grace_seconds)
        return self.notifications.and_(await cancel_tasks(database, catalog, tenant_id, self.run_id, self.nodes, *who))


async def cancel_run_in(
    session: Session, catalog: Catalog, tenant_id: int, run_id: int, *, actor: str, reason: str
) -> CanceledRun | None:
    """Cancel a run in the caller's transaction, which also audits it. Return None if there is no run to cancel."""
    found = await runs_sql.lock_run(session, run_id, tenant_id)
    if found is None:
        return None
    done = await run_commands_sql.cancel_run(session, run_id, actor, reason)
    if done is None:
        return None
    before = {"state": "paused" if found.is_paused else "open", "active": found.active}
    change = run_change("run.cancel", run_id, before, {"state": "canceling" if found.active else "canceled"})
    if is_open := done.state == "o":
        notifications = await _cancel_nodes(session, catalog, run_id)
    else:
        notifications = Notifications(set(), [run_id] if done.is_awaited else [], [run_id] if done.has_parent else [])
    return CanceledRun(run_id=run_id, nodes=found.nodes, has_tasks=is_open, change=change, notifications=notifications)


async def _cancel_nodes(session: Session, catalog: Catalog, run_id: int) -> Notifications:
    """End the waiting nodes of a canceled run, and drop the items that have not been released."""
    runs = await lock_runs(session, catalog, [run_id])
    for run in runs:
        run.ends = [(row.node_no, TaskState.CANCELED) for row in await run_commands_sql.cancel_waits(session, run_id)]
        run.left = len(run.ends)
        await cancel_unreleased_items(session, catalog, run)
    return await advance(session, catalog, runs)


async def cancel_tasks(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    nodes: int,
    actor: str,
    reason: str,
    grace_seconds: float,
) -> Notifications:
    """Cancel the tasks of a canceled run, batch by batch."""
    everything = NO_NOTIFICATIONS
    while task_ids := [
        row[0] for row in await run_commands_sql.run_tasks_to_cancel(database, run_id, nodes, CANCEL_BATCH)
    ]:
        async with database.transaction() as session:
            done = await cancel_in(
                session, catalog, tenant_id, task_ids, grace_seconds=grace_seconds, reason=reason, actor=actor
            )
        everything = everything.and_(done.notifications)
        if not done.states:
            break
    return everything


async def finish_cancels_once(database: Database, catalog: Catalog, *, grace_seconds: float) -> Notifications:
    """Cancel what canceled runs started: child runs, and tasks that a crash left out."""
    everything = NO_NOTIFICATIONS

    async def tell(row: run_commands_sql.CancelingRunsRow) -> None:
        nonlocal everything
        who = (row.canceled_by or "", row.cancel_reason or "", grace_seconds)
        async with database.transaction() as session:
            ended = await _cancel_nodes(session, catalog, row.run_id)
        done = await cancel_tasks(database, catalog, row.tenant_id, row.run_id, row.nodes, *who)
        everything = everything.and_(ended).and_(done)

    await all_in_turn(
        partial(run_commands_sql.canceling_runs, database),
        tell,
        number=lambda row: row.run_id,
        limit=RUNS_BATCH,
        what="cancel",
    )
    for row in await run_commands_sql.children_to_cancel(database, RUNS_BATCH):
        with apart("cancel", row), suppress(Conflict):
            done = await cancel_run(
                database,
                catalog,
                row.tenant_id,
                row.run_id,
                actor=row.canceled_by or ACTOR,
                reason=row.cancel_reason or "",
                grace_seconds=grace_seconds,
            )
            everything = everything.and_(done)
    return everything


async def retry_run(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    *,
    actor: str,
    reason: str,
    only: str | None = None,
    once: IdempotentRequest | None = None,
    answer: Callable[[Redriven], Any] = lambda done: done,
) -> Redriven:
    """Run the failed nodes of a run again (or `only` one node), with everything downstream of them.

    Dead letters of nodes that run again are marked as retrying. With `once`, the value of `answer` is stored under the
    idempotency key and returned to a repetition. `DispatchFailed` if the database rejected the whole transaction.
    """
    async with dispatch_transaction(database, RETRY, f"The retry of run {run_id}") as session:
        if once is not None:
            await once.begin(session)
        held = await lock_run_dead_letters(session, tenant_id, [run_id])
        _, done = await dispatch_run(
            session, catalog, tenant_id, run_id, [], held, RequeueRequest(actor, reason or "run retry"), only=only
        )
        await audit(session, tenant_id, [retried(run_id, done)], actor=actor, reason=reason)
        if once is not None:
            await once.keep(session, answer(done))
    return done


def retried(run_id: int, done: Redriven) -> Change:
    """Return the audit record of a retried run."""
    before: dict[str, Any] = {"generation": done.generation - 1}
    after = {"generation": done.generation, "roots": done.roots[:NAMES_MAX], "reset": len(done.reset)}
    if done.is_resumed:
        before["paused"], after["paused"] = True, False
    return run_change("run.retry", run_id, before, after)


class PlannedRetry(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that a retry of a run would reset, and their effects without a receipt and those that were
    compensated."""

    roots: list[str]
    reset: list[str]
    unknown_effects: list[EffectView]
    undone_effects: list[EffectView]


async def plan_retry(
    database: Database, catalog: Catalog, tenant_id: int, run_id: int, *, only: str | None = None
) -> PlannedRetry:
    """Return what `retry_run` would do now, without changing anything; raises the same errors."""
    async with database.transaction() as session:
        plan = await plan_redrive(session, catalog, tenant_id, run_id, only=only)
    unknown = await unknown_effects(database, tenant_id, plan.task_ids)
    undone = await undone_effects(database, tenant_id, plan.task_ids)
    return PlannedRetry(roots=plan.roots, reset=plan.reset, unknown_effects=unknown, undone_effects=undone)


def run_change(verb: str, run_id: int, before: dict[str, Any], after: dict[str, Any]) -> Change:
    """Return the audit record of a change of a run."""
    return Change(verb=verb, subject_kind="run", subject_id=str(run_id), before=before, after=after)


async def refused(database: Database, tenant_id: int, run_id: int, word: str) -> Exception:
    """Build the error for a run that cannot be paused, resumed or canceled."""
    row = await runs_sql.read_run(database, run_id, tenant_id)
    if row is None:
        return no_run(run_id)
    now = ENDS.get(row.state) or (
        "being canceled" if row.is_canceled else "paused already" if row.is_paused else "not paused"
    )
    return Conflict(f"Run {run_id} cannot be {word}: it is {now}.", code="run_not_open", run_id=str(run_id))
