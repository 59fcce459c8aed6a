"""Claim one task by its id, under the same rules as a batch, or report why it cannot be claimed."""

from __future__ import annotations

from holdfast.core.tasks.states import ENDS
from holdfast.engine.leases import Claimed
from holdfast.engine.lifecycle.tasks.claim import WorkerIdentity, has_room, is_first, spend_room, tally_starts
from holdfast.engine.limits.breakers import trial_rooms
from holdfast.errors import Conflict, NotFound
from holdfast.store.database import Session
from holdfast.store.sql.tasks import claim as claim_sql
from holdfast.store.sql.tasks import settle as settle_sql


async def claim_task(session: Session, identity: WorkerIdentity, task_id: int) -> Claimed:
    """Claim one task by id. Raise `Conflict` with a `reason`, or `NotFound`, if it cannot be claimed.

    Runs in the caller's transaction, which also holds the lock of a limited queue.
    """
    assert session.is_in_transaction()
    served = (identity.actions, identity.queues)
    found = await claim_sql.why_not_claimable(session, task_id, identity.worker_id, *served)
    granted = 0
    if found is not None and found.state == "q" and found.is_served:
        if not await has_room(session, found):
            raise _refusal(task_id, "at_limit")
        if found.breaker_id is not None and found.is_on_trial:
            trials = await trial_rooms(session, [found.breaker_id])
            granted = found.breaker_id if trials.get(found.breaker_id) else 0
    row = await claim_sql.claim_task(session, task_id, identity.worker_id, identity.lease_seconds, granted, *served)
    if row is not None:
        claimed = Claimed.of(row)
        if found is not None:
            await spend_room(session, found)
            if found.is_shared and is_first(claimed):
                await tally_starts(session, [claimed.lane_id])
        return claimed
    blocked = await claim_sql.why_not_claimable(session, task_id, identity.worker_id, *served)
    if blocked is not None:
        raise _refusal(task_id, _reason(blocked))
    # Check nodes first: the outcome of an earlier generation is no answer for this one.
    if (node := await claim_sql.unclaimed_node(session, task_id, identity.worker_id)) is not None:
        raise _refusal(task_id, _NODE_REASONS.get(node.state, node.state))
    winner = await settle_sql.find_winner(session, task_id)
    if winner is None:
        raise NotFound(f"There is no task {task_id}.", code="task_not_found")
    raise _refusal(task_id, ENDS.get(winner.state, "already_running"))


_NODE_REASONS = {"running": "already_running", "queued": "already_running"}
"""A running node without a task (a list, a sub-flow, a wait) counts as running; so does one that was just queued."""


def _reason(blocked: claim_sql.WhyNotClaimableRow) -> str:
    if blocked.worker_state is None:
        return "unknown_worker"
    if not blocked.is_served:
        return "not_served"
    if blocked.state == "r":
        return "already_running" if blocked.has_valid_lease else "lease_expired"
    if blocked.state == "v":
        return "reserved"
    if blocked.state == "w":
        return "not_due"
    if blocked.is_paused:
        return "paused"
    if blocked.is_on_trial:
        return "breaker_open"
    return "worker_not_active" if blocked.worker_state != "active" else "already_running"


def _refusal(task_id: int, reason: str) -> Conflict:
    return Conflict(f"Task {task_id} cannot be claimed: {reason}.", code="not_claimable", reason=reason)
