"""Child runs: a node that runs another flow, and ends when the run it started ends.

The end of a child is applied to its parent once, in a separate transaction under the parent's lock, so no transaction
that has locked a child waits for its parent. A maintenance pass applies ends that a crash left out. A failed node that
is re-driven continues with its child run. When a child run completes through a re-drive of its own, the node that
failed because of it is repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.codec import json_codec
from holdfast.core.flows.bindings import resolve_output
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT
from holdfast.core.flows.progress import End, NodeRow
from holdfast.core.tasks.states import TaskState
from holdfast.core.values import bounds
from holdfast.engine.audit import audit
from holdfast.engine.for_each_row import for_each_row
from holdfast.engine.lifecycle.dead_letters.requeue import RequeueRequest, dispatch_run, lock_run_dead_letters
from holdfast.engine.lifecycle.runs.commands import retried
from holdfast.engine.lifecycle.runs.locked_run import LockedRun, lock_runs
from holdfast.engine.lifecycle.runs.outputs import values_of
from holdfast.engine.lifecycle.runs.release import advance
from holdfast.engine.lifecycle.runs.start import RunOptions, start_runs
from holdfast.engine.lifecycle.runs.taskless_nodes import NOT_STARTED, end_taskless, fail_taskless
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict, Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.dead_letters import commands as commands_sql
from holdfast.store.sql.flows import runs as runs_sql
from holdfast.store.sql.flows import taskless_nodes as taskless_nodes_sql

ANSWERS_BATCH = 100
MENDER = "holdfast:sub-flow"
CHILD_FAILED_CODE = "DAG_TASK_EXECUTION_CHILD_FAILED"


async def begin_child(
    session: Session,
    catalog: Catalog,
    run: LockedRun,
    node_no: int,
    child: FlowSnapshot,
    encoded: bytes,
    *,
    tags: list[str] | None,
) -> None:
    """Start a run of another flow for a node, with the priority of the node's own run if it has one, else the
    node's."""
    node = run.snapshot.plan.nodes[node_no]
    priority = node.priority if run.row.priority is None else run.row.priority
    options = RunOptions(parent_run_id=run.row.run_id, parent_node=node_no, priority=priority, tags=tuple(tags or ()))
    [child_id], notifications = await start_runs(session, catalog, child, [encoded], options)
    await _wait_for(session, run, node_no, child_id)
    run.lanes |= notifications.lanes
    run.waits |= notifications.waits


async def _wait_for(session: Session, run: LockedRun, node_no: int, child_id: int) -> None:
    row = run.progress.mark(node_no, "s")
    where = (run.row.run_id, node_no, run.row.tenant_id, row.generation, row.attempt)
    await taskless_nodes_sql.begin_child(session, *where, child_id)


async def resume_child(session: Session, catalog: Catalog, run: LockedRun, node_no: int) -> tuple[bool, End | None]:
    """Let a reset node continue with its child run. Return whether it has one, and the node's end if the child has
    ended."""
    generation = run.progress.rows[node_no].generation if node_no in run.progress.rows else 1
    kept = await taskless_nodes_sql.kept_child(session, run.row.run_id, node_no, generation) if generation > 1 else None
    if kept is None:
        return False, None
    if kept.state != "o" and not kept.is_wanted:
        return True, await _node_end(session, catalog, run, node_no, kept.run_id, kept, expected_states=NOT_STARTED)
    await _wait_for(session, run, node_no, kept.run_id)
    return True, None


async def answer_once(database: Database, catalog: Catalog, *, limit: int = ANSWERS_BATCH) -> Notifications:
    """Apply the ends of at most `limit` child runs to their parents."""

    async def answer(session: Session, row: taskless_nodes_sql.UnansweredChildrenRow) -> Notifications:
        return await _answer(session, catalog, row.run_id, row.parent_run_id, row.tenant_id)

    return await for_each_row(
        database,
        partial(taskless_nodes_sql.unanswered_children, database),
        limit=limit,
        what="answer",
        work=answer,
    )


async def _answer(session: Session, catalog: Catalog, child_id: int, parent_id: int, tenant_id: int) -> Notifications:
    held = await lock_run_dead_letters(session, tenant_id, [parent_id])
    parent = await runs_sql.lock_run(session, parent_id, tenant_id)
    answer = await taskless_nodes_sql.answer_child(session, child_id)
    if answer is None or parent is None or answer.is_replaced:
        return NO_NOTIFICATIONS
    node_no = answer.parent_node
    waiting = await taskless_nodes_sql.waiting_child(session, parent_id, node_no, child_id)
    if waiting is None:
        return await _mend(session, catalog, parent, node_no, child_id, answer, held)
    [run] = await lock_runs(session, catalog, [parent_id])
    run.progress.rows[node_no] = NodeRow(node_no, "s", attempt=waiting.attempt, generation=waiting.generation)
    run.left += 1
    run.ends.append(await _node_end(session, catalog, run, node_no, child_id, answer, expected_states=("s",)))
    return await advance(session, catalog, [run])


async def _mend(
    session: Session,
    catalog: Catalog,
    parent: runs_sql.LockRunRow,
    node_no: int,
    child_id: int,
    answer: taskless_nodes_sql.AnswerChildRow,
    held: Sequence[commands_sql.LockDeadLettersOfRunsRow],
) -> Notifications:
    """Complete the failed node of a child run that completed after all, by a re-drive of its own.

    The nodes downstream of it run again, after the pause if the parent is paused. The parent and its dead letters are
    locked.
    """
    parent_id, tenant_id = parent.run_id, parent.tenant_id
    if answer.state != "c" or await taskless_nodes_sql.failed_for_child(session, parent_id, node_no, child_id) is None:
        return NO_NOTIFICATIONS
    await catalog.flows.learn([parent.snapshot_id], session)
    name = catalog.flows.snapshot(parent.snapshot_id).plan.names[node_no]
    by = RequeueRequest(MENDER, f"run {child_id} completed", lifts_pause=False)
    try:
        _, done = await dispatch_run(session, catalog, tenant_id, parent_id, [], held, by, only=name)
    except Conflict:
        # The parent was canceled or re-driven from further upstream, so no node waits for this run.
        return NO_NOTIFICATIONS
    await audit(session, tenant_id, [retried(parent_id, done)], actor=by.actor, reason=by.reason)
    return done.notifications


async def retry_children_once(database: Database, catalog: Catalog, *, limit: int = ANSWERS_BATCH) -> Notifications:
    """Re-drive at most `limit` failed child runs that a reset node continues with.

    Locks the child's dead letters, the parent, and the child. If the child cannot run again, its failure is applied to
    the node.
    """

    async def again(session: Session, row: taskless_nodes_sql.WantedChildrenRow) -> Notifications:
        child_id, parent_id, tenant_id = row.run_id, row.parent_run_id, row.tenant_id
        held = await lock_run_dead_letters(session, tenant_id, [child_id])
        parent = await runs_sql.lock_run(session, parent_id, tenant_id)
        found = await runs_sql.lock_run(session, child_id, tenant_id)
        if found is None or not found.is_wanted:
            return NO_NOTIFICATIONS
        by = RequeueRequest(MENDER, f"run {parent_id} is run again")
        try:
            if parent is None or parent.is_canceled:
                raise Conflict("The parent run no longer waits for it.", code="run_not_open")
            _, done = await dispatch_run(session, catalog, tenant_id, child_id, [], held, by)
        except Conflict:
            await taskless_nodes_sql.unwant_child(session, child_id)
            return Notifications(set(), [], [child_id])
        await audit(session, tenant_id, [retried(child_id, done)], actor=by.actor, reason=by.reason)
        return done.notifications

    return await for_each_row(
        database, partial(taskless_nodes_sql.wanted_children, database), limit=limit, what="retry", work=again
    )


async def _node_end(
    session: Session,
    catalog: Catalog,
    run: LockedRun,
    node_no: int,
    child_id: int,
    answer: taskless_nodes_sql.AnswerChildRow | taskless_nodes_sql.KeptChildRow,
    *,
    expected_states: tuple[str, ...],
) -> End:
    """End a node as its child run ended, with the output of the flow."""
    if answer.state == "x":
        return await end_taskless(session, run, node_no, TaskState.CANCELED, expected_states)
    if answer.state == "f":
        message = f"Run {child_id} of flow {run.snapshot.plan.nodes[node_no].action} failed."
        return await fail_taskless(
            session, run, node_no, expected_states, code=CHILD_FAILED_CODE, message=message, opens_dead_letter=False
        )
    try:
        output = await run_output(session, catalog, child_id, answer.snapshot_id)
        encoded = json_codec.encode(output, bytes_max=bounds.NODE_INPUT_BYTES_MAX, what="output")
    except Invalid as error:
        return await fail_taskless(session, run, node_no, expected_states, code=error.code, message=str(error))
    return await end_taskless(session, run, node_no, TaskState.COMPLETED, expected_states, output=encoded)


async def run_output(session: Session, catalog: Catalog, run_id: int, snapshot_id: int) -> Any:
    """Return the output of a run, as far as its nodes have completed."""
    await catalog.flows.learn([snapshot_id], session)
    plan = catalog.flows.snapshot(snapshot_id).plan
    edges = plan.incoming(RUN_OUTPUT)
    asked = {plan.number[edge.upstream] for edge in edges if edge.upstream != RUN_INPUT}
    values = await values_of(session, catalog, run_id, asked)
    return resolve_output(edges, run_input=values.input, outputs=values.outputs, absent=values.absent)
