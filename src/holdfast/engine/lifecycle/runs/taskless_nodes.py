"""Nodes that run no task of their own: items of a list, a run of another flow, a wait for an event.

Each starts and ends under the lock of its run. A node that cannot start (its list is no list, for example) fails at
once, with an attempt that records the cause and a dead letter; the run still ends.
"""

from __future__ import annotations

from holdfast.codec import json_codec
from holdfast.core.flows.bindings import accept_run_input, map_inputs, resolve_input
from holdfast.core.flows.node_check import APPROVAL
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.flows.progress import End
from holdfast.core.tasks.states import TaskState
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.dead_letters.open_for_node import open_for_node, resolve_completed_nodes
from holdfast.engine.lifecycle.runs.items import begin_items
from holdfast.engine.lifecycle.runs.locked_run import LockedRun
from holdfast.engine.lifecycle.runs.outputs import values_of
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.sql.flows import taskless_nodes as taskless_nodes_sql

NOT_STARTED = ("b", "h", "r")
"""The states of a node that may fail or complete before it has begun."""
APPROVAL_PREFIX = f"{APPROVAL}:"
STATE_CODES = {
    TaskState.COMPLETED: "c",
    TaskState.FAILED: "f",
    TaskState.CANCELED: "x",
    TaskState.SKIPPED: "k",
}
_COMPLETED = TaskState.COMPLETED
REASON = "not_retryable"
DEAD_LETTERS_BATCH = 100


async def start_taskless(session: Session, catalog: Catalog, run: LockedRun, node_no: int) -> End | None:
    """Begin a released node. Return its end if it ends at once."""
    from holdfast.engine.lifecycle.runs.children import begin_child, resume_child

    plan, run_id = run.snapshot.plan, run.row.run_id
    node = plan.nodes[node_no]
    try:
        values = await values_of(session, catalog, run_id, plan.recipe(node_no).upstreams)
        given = resolve_input(
            node, plan.incoming(node.name), run_input=values.input, outputs=values.outputs, absent=values.absent
        )
        match node.kind:
            case NodeKind.MAP:
                count = len(map_inputs(node, given))
                if count == 0:
                    return await end_taskless(session, run, node_no, _COMPLETED, NOT_STARTED, output=b"[]")
                await begin_items(session, catalog, run, node_no, count)
            case NodeKind.FLOW:
                has_child, end = await resume_child(session, catalog, run, node_no)
                if has_child:
                    return end
                child = catalog.flows.snapshot(run.snapshot.child_ids[node_no])
                accepted = accept_run_input(child.plan.inputs, given)
                encoded = json_codec.encode(accepted, bytes_max=bounds.NODE_INPUT_BYTES_MAX, what="input")
                await begin_child(session, catalog, run, node_no, child, encoded, tags=values.tags)
            case _:
                await _begin_wait(session, run, node_no, wait_key_of(node, given, run_id))
    except Invalid as error:
        return await fail_taskless(session, run, node_no, NOT_STARTED, code=error.code, message=str(error))
    return None


def wait_key_of(node: Node, given: dict[str, object], run_id: int) -> str:
    """Return the event key that a waiting node expects: the event name, with the node's key if it has one.

    An approval key names one run and one node. `Invalid` if no event can have this key.
    """
    if node.config.get("approval") is True:
        return f"{APPROVAL_PREFIX}{run_id}:{node.name}"
    key = given.get("key")
    return bounds.valid_key(node.action if key is None else f"{node.action}:{key}")


async def _begin_wait(session: Session, run: LockedRun, node_no: int, wait_key: str) -> None:
    row = run.progress.mark(node_no, "w")
    seconds = run.snapshot.plan.nodes[node_no].timeout_seconds
    where = (run.row.run_id, node_no, run.row.tenant_id, row.generation, row.attempt)
    await taskless_nodes_sql.begin_wait(session, *where, wait_key, seconds)
    run.waits.add(run.row.run_id)


async def end_taskless(
    session: Session,
    run: LockedRun,
    node_no: int,
    state: TaskState,
    expected_states: tuple[str, ...],
    *,
    output: bytes | None = None,
    signal_id: int | None = None,
) -> End:
    """Record the end of a node without a task; `expected_states` are the states in which it may be."""
    row = run.progress.mark(node_no, STATE_CODES[state])
    where = (run.row.run_id, node_no, run.row.tenant_id, STATE_CODES[state], row.generation, row.attempt)
    done = await taskless_nodes_sql.end_taskless_node(session, *where, output, signal_id, list(expected_states))
    assert done is not None, "the lock of the run is held and its node was read under it"
    if state is TaskState.COMPLETED and row.generation > 1:
        await resolve_completed_nodes(session, [run.row.run_id + 1 + node_no], limit=DEAD_LETTERS_BATCH)
    return node_no, state


async def fail_taskless(
    session: Session,
    run: LockedRun,
    node_no: int,
    expected_states: tuple[str, ...],
    *,
    code: str,
    message: str,
    opens_dead_letter: bool = True,
) -> End:
    """Fail a node that has no task, with an attempt that records the cause.

    It gets a dead letter, unless `opens_dead_letter` is False because the failed work has one of its own.
    """
    row = run.progress.mark(node_no, "f")
    failure_fields = (code, message, REASON, f"Not retried: {message}")
    where = (run.row.run_id + 1 + node_no, row.attempt, run.row.tenant_id, row.generation)
    row.attempt = await taskless_nodes_sql.record_node_failure(session, *where, *failure_fields)
    if opens_dead_letter:
        await open_for_node(session, run, node_no, code=code, cause=REASON)
    return await end_taskless(session, run, node_no, TaskState.FAILED, expected_states)
