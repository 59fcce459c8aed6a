"""Park: a node that failed without a task has a dead letter like one that did with it, so that somebody finds it.

One letter at a time stands for such a node. When it fails again the new letter takes the place of the old ones: nobody
is asked again by itself for an approval that was refused. When it completes they are resolved. Both happen under the
lock of the run, so letters that somebody holds are left to the sweep and to a pass.
"""

from __future__ import annotations

from holdfast.core.dead_letters.dead_letter import DISPATCHER_ACTOR
from holdfast.core.flows.nodes import Node
from holdfast.core.tasks.fingerprint import fingerprint_on_record
from holdfast.engine.lifecycle.runs.locked_run import LockedRun
from holdfast.store.database import Session
from holdfast.store.statements import sql

_PARK_NODE = sql("park_node")
_RESOLVE_COMPLETED_NODES = sql("resolve_completed_nodes")
_ENSURE_QUEUE = sql("ensure_queue")
_ENSURE_LANE = sql("ensure_lane")
_FIND_LANE = sql("find_lane")

NO_QUEUE = "default"
"""Under which queue letters of nodes are shown that have none: waits and sub-flows."""


async def open_for_node(session: Session, run: LockedRun, node_no: int, *, code: str, cause: str) -> None:
    """Open the letter of a node that failed at its present attempt, in place of those it had."""
    node, row = run.snapshot.plan.nodes[node_no], run.progress.rows[node_no]
    where = (run.row.tenant_id, run.row.run_id + 1 + node_no, run.row.run_id, node_no)
    lane_id = run.snapshot.lane_ids[node_no] or await _lane_of(session, run.row.tenant_id, node)
    # Whoever refused it, and whatever the list was: what is to be mended is this node of this flow.
    place = f"{run.snapshot.plan.name} {node.name}"
    fingerprint = fingerprint_on_record(state="f", code=code, type=code, message=place, traceback="")
    known = (lane_id, row.attempt, row.generation, fingerprint, cause)
    await session.fetch(_PARK_NODE, *where, *known, DISPATCHER_ACTOR)


async def resolve_mended(session: Session, task_ids: list[int] | None, *, limit: int) -> int:
    """Resolve letters of nodes without a task that completed since: of some of them, or of any."""
    return len(await session.fetch(_RESOLVE_COMPLETED_NODES, task_ids, limit, DISPATCHER_ACTOR))


async def _lane_of(session: Session, tenant_id: int, node: Node) -> int:
    """A letter is shown with an action and a queue: of a wait its event, of a sub-flow the flow."""
    lane = (tenant_id, NO_QUEUE, node.action)
    if (found := await session.fetchval(_FIND_LANE, *lane)) is None:
        await session.fetch(_ENSURE_QUEUE, tenant_id, NO_QUEUE)
        await session.fetch(_ENSURE_LANE, *lane)
        found = await session.fetchval(_FIND_LANE, *lane)
    return int(found)
