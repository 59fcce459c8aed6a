"""Open dead letters for nodes that failed without a task, so that an operator finds them.

Such a node has one unresolved dead letter at a time. When it fails again, the new dead letter replaces the old ones: a
refused approval is not requested again automatically. When it completes, they are resolved. Both happen under the lock
of the run, so dead letters that another transaction has locked are left to the sweep and the repair pass.
"""

from __future__ import annotations

from holdfast.core.dead_letters.dead_letter import SWEEP_ACTOR
from holdfast.core.flows.nodes import Node
from holdfast.core.tasks.fingerprint import fingerprint_on_record
from holdfast.engine.lifecycle.runs.locked_run import LockedRun
from holdfast.store.database import Session
from holdfast.store.sql.dead_letters import repair as repair_sql
from holdfast.store.sql.tasks import lanes as lanes_sql

NO_QUEUE = "default"
"""The queue shown for dead letters of nodes that have none: waits and sub-flows."""


async def open_for_node(session: Session, run: LockedRun, node_no: int, *, code: str, cause: str) -> None:
    """Open the dead letter of a node that failed at its current attempt, replacing earlier ones."""
    node, row = run.snapshot.plan.nodes[node_no], run.progress.rows[node_no]
    where = (run.row.tenant_id, run.row.run_id + 1 + node_no, run.row.run_id, node_no)
    lane_id = run.snapshot.lane_ids[node_no] or await _lane_of(session, run.row.tenant_id, node)
    # The fingerprint names only the flow and the node: whatever the reason was, this node is what has to be fixed.
    place = f"{run.snapshot.plan.name} {node.name}"
    fingerprint = fingerprint_on_record(state="f", code=code, type=code, message=place, traceback="")
    attempts = (row.attempt, row.generation)
    await repair_sql.park_node(session, *where, lane_id, *attempts, fingerprint, cause, SWEEP_ACTOR)


async def resolve_completed_nodes(session: Session, task_ids: list[int] | None, *, limit: int) -> int:
    """Resolve dead letters of nodes without a task that have completed since: of the given tasks, or of any."""
    return len(await repair_sql.resolve_completed_nodes(session, task_ids, limit, SWEEP_ACTOR))


async def _lane_of(session: Session, tenant_id: int, node: Node) -> int:
    """Return the lane shown for a dead letter: its action is the event of a wait, or the flow of a sub-flow."""
    lane = (tenant_id, NO_QUEUE, node.action)
    if (found := await lanes_sql.find_lane(session, *lane)) is None:
        await lanes_sql.ensure_queue(session, tenant_id, NO_QUEUE)
        await lanes_sql.ensure_lane(session, *lane)
        found = await lanes_sql.find_lane(session, *lane)
        assert found is not None, "it was just created"
    return found
