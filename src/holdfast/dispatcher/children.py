"""Children: a node that runs another flow. The run it starts answers it when it ends.

The answer is a transaction of its own, under the parent's lock, told once: so no transaction ever holds the locks of a
child and waits for its parent. A pass finds answers that a crash left untold.
"""

from __future__ import annotations

from typing import Any

from holdfast import wire
from holdfast.core import limits
from holdfast.core.bindings import resolve_output
from holdfast.core.nodes import RUN_INPUT, RUN_OUTPUT
from holdfast.core.progress import NodeRow
from holdfast.core.states import TaskState
from holdfast.dispatcher.locked import LockedRun, lock_runs
from holdfast.dispatcher.news import NO_NEWS, News
from holdfast.dispatcher.outputs import values_of
from holdfast.dispatcher.release import advance
from holdfast.dispatcher.special import end_special, fail_special
from holdfast.dispatcher.start import RunOptions, start_runs
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.flows import Snapshot
from holdfast.store.statements import sql

_BEGIN_CHILD = sql("begin_child")
_UNANSWERED = sql("unanswered_children")
_ANSWER_CHILD = sql("answer_child")
_WAITING_CHILD = sql("waiting_child")

ANSWERS_BATCH = 100
CHILD_FAILED_CODE = "DAG_TASK_EXECUTION_CHILD_FAILED"


async def begin_child(
    session: Session,
    catalog: Catalog,
    run: LockedRun,
    node_no: int,
    child: Snapshot,
    encoded: bytes,
    *,
    tags: list[str] | None,
) -> None:
    """Release a node as a run of another flow."""
    options = RunOptions(
        parent_run_id=run.row.run_id, parent_node=node_no, priority=run.row.priority, tags=tuple(tags or ())
    )
    [child_id], news = await start_runs(session, catalog, child, [encoded], options)
    row = run.progress.mark(node_no, "s")
    where = (run.row.run_id, node_no, run.row.tenant_id, row.generation)
    await session.fetch(_BEGIN_CHILD, *where, child_id, row.attempt)
    run.lanes |= news.lanes
    run.waits = run.waits or news.has_waits


async def answer_once(database: Database, catalog: Catalog, *, limit: int = ANSWERS_BATCH) -> News:
    """Tell parents about runs that ended; at most `limit` of them."""
    everything = NO_NEWS
    for row in await database.fetch(_UNANSWERED, limit):
        async with database.transaction() as session:
            told = await _answer(session, catalog, row["run_id"], row["parent_run_id"])
        everything = everything.and_(told)
    return everything


async def _answer(session: Session, catalog: Catalog, child_id: int, parent_id: int) -> News:
    runs = await lock_runs(session, catalog, [parent_id])
    answer = await session.fetchrow(_ANSWER_CHILD, child_id)
    if answer is None or not runs:
        return NO_NEWS
    [run] = runs
    node_no = answer["parent_node"]
    waiting = await session.fetchrow(_WAITING_CHILD, parent_id, node_no, child_id)
    if waiting is None:
        return NO_NEWS
    run.progress.rows[node_no] = NodeRow(node_no, "s", attempt=waiting["attempt"], generation=waiting["generation"])
    run.left += 1
    run.ends.append(await _node_end(session, catalog, run, node_no, child_id, answer))
    return await advance(session, catalog, [run])


async def _node_end(
    session: Session, catalog: Catalog, run: LockedRun, node_no: int, child_id: int, answer: Any
) -> tuple[int, TaskState]:
    """How the waiting node ends: as its run did, with what the flow returns."""
    if answer["state"] == "x":
        return await end_special(session, run, node_no, TaskState.CANCELED, ("s",))
    if answer["state"] == "f":
        message = f"Run {child_id} of flow {run.snapshot.plan.nodes[node_no].action} failed."
        return await fail_special(session, run, node_no, ("s",), code=CHILD_FAILED_CODE, message=message)
    try:
        output = await run_output(session, catalog, child_id, answer["snapshot_id"])
        encoded = wire.encode(output, bytes_max=limits.NODE_INPUT_BYTES_MAX, what="output")
    except Invalid as error:
        return await fail_special(session, run, node_no, ("s",), code=error.code, message=str(error))
    return await end_special(session, run, node_no, TaskState.COMPLETED, ("s",), output=encoded)


async def run_output(session: Session, catalog: Catalog, run_id: int, snapshot_id: int) -> Any:
    """What a run returns of what is there now."""
    await catalog.flows.learn([snapshot_id], session)
    plan = catalog.flows.snapshot(snapshot_id).plan
    edges = plan.incoming(RUN_OUTPUT)
    asked = {plan.number[edge.upstream] for edge in edges if edge.upstream != RUN_INPUT}
    values = await values_of(session, catalog, run_id, asked)
    return resolve_output(edges, run_input=values.input, outputs=values.outputs, absent=values.absent)
