"""Re-drive a run: run failed nodes and everything downstream of them again, as a new generation.

Retries of runs, retries of single nodes and dead letters all use this reset. `core` plans it under the run's lock, on
states read under that lock; nodes that are running are left alone. Reset nodes start through the ordinary release. A
node that failed because its child run failed continues with that child, whose failed nodes run again in a separate
transaction. A requested re-drive unpauses a paused run. An automatic one leaves it paused, and the reset nodes wait
with the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.dead_letters.dead_letter import SWEEP_ACTOR
from holdfast.core.flows.progress import BLOCKED, RELEASED, NodeRow
from holdfast.core.flows.redrive import Redrive, Reset, redrive
from holdfast.core.flows.release import Release
from holdfast.core.tasks.states import ENDS, TaskState
from holdfast.core.values.bounds import no_run
from holdfast.engine.datasets.take_back import owe_rows
from holdfast.engine.lifecycle.runs.locked_run import LockedRun, RunRow
from holdfast.engine.lifecycle.runs.release import advance, take_up_all
from holdfast.engine.notifications import Notifications
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.dead_letters import repair as repair_sql
from holdfast.store.sql.flows import run_commands as run_commands_sql
from holdfast.store.sql.flows import runs as runs_sql
from holdfast.store.sql.flows import signals as signals_sql
from holdfast.store.sql.flows import taskless_nodes as taskless_nodes_sql

DEAD_LETTERS_BATCH = 1_000


class Redriven(msgspec.Struct, frozen=True):
    """The result of a re-drive: the reset nodes by name and number, those that rerun their existing items (`keeping`),
    whether the run was unpaused, and the notifications to send after the commit."""

    generation: int
    roots: list[str]
    reset: list[str]
    numbers: frozenset[int]
    keeping: frozenset[int]
    is_resumed: bool
    notifications: Notifications

    def keeps(self, run_id: int, node_no: int, task_id: int) -> bool:
        """Return whether a task of a reset node runs again: the node's own task, or an item that is not replaced."""
        return task_id == run_id + 1 + node_no or node_no in self.keeping


class PlannedRedrive(msgspec.Struct, frozen=True):
    """The nodes that would be reset, by name, and the ids of their tasks, including items."""

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
    only: str | int | None = None,
    priority: int | None = None,
    lifts_pause: bool = True,
) -> Redriven:
    """Reset the failed nodes (or `only` one node, by name or number) with their descendants and release them.

    Runs in the caller's transaction. `priority` replaces the priority of nodes that start at once. A paused run starts
    nothing unless `lifts_pause`; then nodes that were held back start too. `NotFound` if there is no such run or node;
    `Conflict` if the run was canceled or has nothing to run again.
    """
    found, plan, rows = await _plan(session, catalog, tenant_id, run_id, only, is_locking=True)
    is_resumed = False
    if lifts_pause and found.is_paused:
        is_resumed = await run_commands_sql.resume_run(session, run_id, actor, reason) is not None
    run = await _reopen(session, catalog, found, plan, rows, actor=actor, reason=reason)
    if priority is not None:
        run.row = msgspec.structs.replace(run.row, priority=priority)
    kept, replaced = children_of(catalog.flows.snapshot(found.snapshot_id), plan, rows)
    if kept:
        await taskless_nodes_sql.keep_children(session, kept, run.row.generation)
    if replaced:
        gone = [row.run_id for row in await taskless_nodes_sql.replace_children(session, replaced)]
        await repair_sql.close_replaced(session, gone, DEAD_LETTERS_BATCH, SWEEP_ACTOR)
    reset = [one.node for one in plan.resets]
    numbers = frozenset(run.snapshot.plan.number[name] for name in reset)
    await owe_rows(session, tenant_id, run_id, run.row.generation, nodes=numbers, replaced=replaced)
    if is_resumed:
        await take_up_all(session, catalog, run)
    notifications = (await advance(session, catalog, [run])).and_(Notifications(set(), [], kept))
    keeping = frozenset(row.node_no for row in _with_items(run.snapshot, plan, rows))
    return Redriven(run.row.generation, list(plan.roots), reset, numbers, keeping, is_resumed, notifications)


def children_of(
    snapshot: FlowSnapshot,
    plan: Redrive,
    rows: Sequence[run_commands_sql.NodeStatesRow],
) -> tuple[list[int], list[int]]:
    """Return the child runs of reset nodes: those that the nodes continue with, and those that new runs replace.

    A node continues with its child run if it failed because of that run and gets the same input again.
    """
    number = snapshot.plan.number
    unmoved, reset = ({number[name] for name in names} for names in (plan.unmoved, [one.node for one in plan.resets]))
    kept: list[int] = []
    replaced: list[int] = []
    for row in rows:
        if row.child_run_id is not None and row.node_no in reset:
            is_kept = row.node_no in unmoved and row.state_code == "f"
            (kept if is_kept else replaced).append(row.child_run_id)
    return sorted(kept), sorted(replaced)


async def plan_redrive(
    session: Session, catalog: Catalog, tenant_id: int, run_id: int, *, only: str | None = None
) -> PlannedRedrive:
    """Return what `redrive_run` would reset now; raises the same errors. Changes and locks nothing."""
    found, plan, rows = await _plan(session, catalog, tenant_id, run_id, only, is_locking=False)
    reset = {one.node for one in plan.resets}
    names = [node.name for node in catalog.flows.snapshot(found.snapshot_id).plan.nodes]
    task_ids: list[int] = []
    for row in rows:
        if names[row.node_no] in reset:
            first = row.items_first
            task_ids += [row.task_id] if first is None else range(first, first + (row.items or 0))
    kept, replaced = children_of(catalog.flows.snapshot(found.snapshot_id), plan, rows)
    for child_id in kept:
        child = await runs_sql.read_run(session, child_id, tenant_id)
        if child is not None and child.state == "f":
            task_ids += (await plan_redrive(session, catalog, tenant_id, child_id)).task_ids
    for below in await taskless_nodes_sql.tasks_below(session, replaced) if replaced else ():
        task_ids += range(below.first_id, below.last_id + 1)
    return PlannedRedrive(list(plan.roots), [one.node for one in plan.resets], task_ids)


async def _plan(
    session: Session, catalog: Catalog, tenant_id: int, run_id: int, only: str | int | None, *, is_locking: bool
) -> tuple[
    runs_sql.LockRunRow | runs_sql.ReadRunRow,
    Redrive,
    list[run_commands_sql.NodeStatesRow],
]:
    """Plan a re-drive. Return the run, read with or without its lock, the plan, and the states of its nodes."""
    read = runs_sql.lock_run if is_locking else runs_sql.read_run
    found = await read(session, run_id, tenant_id)
    if found is None:
        raise no_run(run_id)
    if found.is_canceled:
        raise _not_retryable(run_id, "it was canceled")
    if found.is_replaced:
        raise _not_retryable(run_id, f"run {found.parent_run_id} started another in its place")
    await catalog.flows.learn([found.snapshot_id], session)
    snapshot = catalog.flows.snapshot(found.snapshot_id)
    rows = await run_commands_sql.node_states(session, run_id, tenant_id)
    names = snapshot.plan.names
    plan = redrive(
        snapshot.plan.definition,
        {names[row.node_no]: _state(row.state) for row in rows},
        retrying={names[row.node_no] for row in rows if row.state == "retrying"},
        only=names[only] if isinstance(only, int) else only,
    )
    if not plan.roots:
        raise _not_retryable(run_id, f"it is {ENDS.get(found.state, 'open')} and none of its nodes failed")
    return found, plan, rows


async def _reopen(
    session: Session,
    catalog: Catalog,
    found: runs_sql.LockRunRow | runs_sql.ReadRunRow,
    plan: Redrive,
    rows: list[run_commands_sql.NodeStatesRow],
    *,
    actor: str,
    reason: str,
) -> LockedRun:
    snapshot = catalog.flows.snapshot(found.snapshot_id)
    number = snapshot.plan.number
    numbers = [number[reset.node] for reset in plan.resets]
    attempts = {row[0]: row[1] for row in await run_commands_sql.last_attempts(session, found.run_id, numbers)}
    states = {row.node_no: row.state for row in rows}
    over = [one for one in numbers if states[one] != "blocked"]
    failed = [one for one in numbers if states[one] == "failed"]
    await signals_sql.delete_signal_answers(session, found.run_id, numbers)
    row = await run_commands_sql.reopen_run(
        session,
        found.run_id,
        numbers,
        len(over),
        len(failed),
        actor,
        reason,
        found.generation,
        [attempts[one] for one in numbers],
        _completed(rows, numbers),
    )
    run = LockedRun(RunRow(*row), snapshot)
    by_number = {one.node_no: one for one in rows}
    if items := [node.items_first for node in _with_items(snapshot, plan, rows)]:
        await taskless_nodes_sql.keep_items(session, items, run.row.generation)
    for reset in plan.resets:
        _reset_node(run, reset, number[reset.node], attempts[number[reset.node]])
    # Nodes downstream that are not reset have been released before. Without a row they would be released again when
    # their upstream ends again.
    for kept in {down for one in numbers for down in snapshot.plan.downstream[one]}.difference(numbers):
        if by_number[kept].state_code is None:
            run.progress.mark(kept, RELEASED).generation = by_number[kept].generation
    return run


def _completed(rows: Sequence[run_commands_sql.NodeStatesRow], numbers: Sequence[int]) -> list[str]:
    """Return the ids of completed tasks among some nodes; they are counted as completed until the reset."""
    among = set(numbers)
    done = (row for row in rows if row.node_no in among and row.state == "completed" and not row.is_taskless)
    return [str(row.task_id) for row in done]


def _with_items(
    snapshot: FlowSnapshot,
    plan: Redrive,
    rows: Sequence[run_commands_sql.NodeStatesRow],
) -> list[Any]:
    """Return nodes that failed because of their items and get the same list again: only items that did not complete
    rerun."""
    unmoved = {snapshot.plan.number[name] for name in plan.unmoved}
    return [row for row in rows if row.node_no in unmoved and row.state_code == "f" and row.items]


def _reset_node(run: LockedRun, reset: Reset, node_no: int, attempt: int) -> None:
    """Reset one node, and start or end it if its counters allow."""
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
