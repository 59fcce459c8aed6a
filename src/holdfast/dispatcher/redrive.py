"""Re-drive: run again what failed in a run, and everything downstream of it, as a new generation.

The one reset that retry, retry of one node and dead letters share. Planned by `core.redrive` under the run's lock, on
states read under it; what is under way is left alone. What goes, goes by the ordinary release.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.progress import BLOCKED, RELEASED, NodeRow
from holdfast.core.redrive import Redrive, Reset, redrive
from holdfast.core.release import Release
from holdfast.core.states import TaskState
from holdfast.dispatcher.locked import LockedRun, RunRow
from holdfast.dispatcher.news import News
from holdfast.dispatcher.release import advance
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.statements import sql

_LOCK_RUN = sql("lock_run")
_NODE_STATES = sql("node_states")
_LAST_ATTEMPTS = sql("last_attempts")
_REOPEN_RUN = sql("reopen_run")
_FORGET_ANSWERS = sql("forget_answers")

_RUN_WORDS = {"o": "open", "c": "completed", "f": "failed", "x": "canceled"}


class Redriven(msgspec.Struct, frozen=True):
    """What was reset, by node name, and what to announce after the commit."""

    generation: int
    roots: list[str]
    reset: list[str]
    news: News


class PlannedRedrive(msgspec.Struct, frozen=True):
    """What would be reset, by node name, and the tasks of those nodes, items among them."""

    roots: list[str]
    reset: list[str]
    task_ids: list[int]


async def redrive_run(
    session: Session,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    *,
    actor: str,
    reason: str,
    only: str | None = None,
) -> Redriven:
    """Reset what failed (or `only` one node) with its descendants and let it go again, in the caller's transaction.

    `NotFound` without such a run or node; `Conflict` if the run was canceled or has nothing to run again.
    """
    found, plan, rows = await _plan(session, catalog, tenant_id, run_id, only)
    run = await _reopen(session, catalog, found, plan, rows, actor=actor, reason=reason)
    news = await advance(session, catalog, [run])
    return Redriven(run.row.generation, list(plan.roots), [reset.node for reset in plan.resets], news)


async def plan_redrive(
    session: Session, catalog: Catalog, tenant_id: int, run_id: int, *, only: str | None = None
) -> PlannedRedrive:
    """What `redrive_run` would reset now; it raises what that would raise. Changes nothing."""
    found, plan, rows = await _plan(session, catalog, tenant_id, run_id, only)
    reset = {one.node for one in plan.resets}
    names = [node.name for node in catalog.flows.snapshot(found["snapshot_id"]).plan.nodes]
    task_ids: list[int] = []
    for row in rows:
        if names[row["node_no"]] in reset:
            first = row["items_first"]
            task_ids += [row["task_id"]] if first is None else range(first, first + row["items"])
    return PlannedRedrive(list(plan.roots), [one.node for one in plan.resets], task_ids)


async def _plan(
    session: Session, catalog: Catalog, tenant_id: int, run_id: int, only: str | None
) -> tuple[Any, Redrive, list[Any]]:
    """Plan a re-drive under the lock of its run: the run, what to reset, and where its nodes stand."""
    found = await session.fetchrow(_LOCK_RUN, run_id, tenant_id)
    if found is None:
        raise NotFound(f"There is no run {run_id}.", code="DAG_VALIDATION_DAG_RUN_NOT_FOUND")
    if found["is_canceled"]:
        raise _not_retryable(run_id, "it was canceled")
    await catalog.flows.learn([found["snapshot_id"]], session)
    snapshot = catalog.flows.snapshot(found["snapshot_id"])
    rows = await session.fetch(_NODE_STATES, run_id, tenant_id)
    names = snapshot.plan.names
    plan = redrive(
        snapshot.plan.definition,
        {names[row["node_no"]]: _state(row["state"]) for row in rows},
        retrying={names[row["node_no"]] for row in rows if row["state"] == "retrying"},
        only=only,
    )
    if not plan.roots:
        raise _not_retryable(run_id, f"it is {_RUN_WORDS[found['state']]} and none of its nodes failed")
    return found, plan, rows


async def _reopen(
    session: Session, catalog: Catalog, found: Any, plan: Redrive, rows: list[Any], *, actor: str, reason: str
) -> LockedRun:
    snapshot = catalog.flows.snapshot(found["snapshot_id"])
    number = snapshot.plan.number
    numbers = [number[reset.node] for reset in plan.resets]
    attempts = {row[0]: row[1] for row in await session.fetch(_LAST_ATTEMPTS, found["run_id"], numbers)}
    states = {row["node_no"]: row["state"] for row in rows}
    over = [one for one in numbers if states[one] != "blocked"]
    failed = [one for one in numbers if states[one] == "failed"]
    await session.fetch(_FORGET_ANSWERS, found["run_id"], numbers)
    row = await session.fetchrow(
        _REOPEN_RUN,
        found["run_id"],
        numbers,
        len(over),
        len(failed),
        actor,
        reason,
        found["generation"],
        [attempts[one] for one in numbers],
    )
    run = LockedRun(RunRow(*row), snapshot)
    by_number = {one["node_no"]: one for one in rows}
    for root in (number[name] for name in plan.roots):
        if by_number[root]["letter"] == "f" and by_number[root]["items"]:
            run.kept_items[root] = (by_number[root]["items_first"], by_number[root]["items"])
    for reset in plan.resets:
        _reset_node(run, reset, number[reset.node], attempts[number[reset.node]])
    # What keeps its place behind them was let go before: without a row it would be again when its upstream ends again.
    for kept in {down for one in numbers for down in snapshot.plan.downstream[one]}.difference(numbers):
        if by_number[kept]["letter"] is None:
            run.progress.mark(kept, RELEASED).generation = by_number[kept]["generation"]
    return run


def _reset_node(run: LockedRun, reset: Reset, node_no: int, attempt: int) -> None:
    """Put one node back, and do what its counters say."""
    counts = reset.counts
    row = NodeRow(
        node_no,
        BLOCKED,
        counts.pending,
        counts.succeeded,
        counts.skipped,
        counts.failed,
        attempt,
        run.progress.generation,
    )
    run.progress.rows[node_no] = row
    run.progress.changed.add(node_no)
    if reset.release is not Release.WAIT:
        run.ends += run.progress.decide(node_no)


def _state(word: str) -> TaskState:
    return TaskState.FAILED if word == "retrying" else TaskState(word)


def _not_retryable(run_id: int, why: str) -> Conflict:
    return Conflict(
        f"Run {run_id} cannot be retried: {why}.",
        code="DAG_STATE_TRANSITION_RUN_NOT_RETRYABLE",
        advice=f"See `holdfast run show {run_id}`.",
        run_id=str(run_id),
    )
