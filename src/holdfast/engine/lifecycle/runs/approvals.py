"""Approvals: an operator approves or rejects a waiting node, once, under the lock of its run.

The answer, its consequences for the run and its audit record are one transaction. Of two concurrent answers one wins,
and the other caller gets an error that names the winner. An answer may come before the node waits; it is then stored
until it does. A node that runs again needs a new approval.
"""

from __future__ import annotations

import msgspec

from holdfast.codec import json_codec
from holdfast.core.flows.nodes import Node
from holdfast.core.flows.progress import NodeRow
from holdfast.core.tasks.states import ENDS
from holdfast.core.values import bounds
from holdfast.core.values.bounds import no_run
from holdfast.engine.audit import Change, audit
from holdfast.engine.lifecycle.runs.locked_run import LockedRun, lock_runs
from holdfast.engine.lifecycle.runs.release import advance
from holdfast.engine.lifecycle.runs.signals import take
from holdfast.engine.lifecycle.runs.taskless_nodes import APPROVAL_PREFIX
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.engine.queries.runs import no_node
from holdfast.errors import Conflict, Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.flows import runs as runs_sql
from holdfast.store.sql.flows import signals as signals_sql

_NODE_WORDS = {**ENDS, "k": "skipped", "u": "not run: an upstream failed"}


class ApprovalAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted answer. `is_early` means that the node does not wait yet, and the answer is stored until it does."""

    is_given: bool
    is_early: bool
    notifications: Notifications


async def answer_approval(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    name: str,
    *,
    is_given: bool,
    actor: str,
    reason: str,
) -> ApprovalAnswered:
    """Approve or reject one node. `NotFound` if there is no such node, `Conflict` if it is answered already or too
    late."""
    if reason:
        bounds.valid_reason(reason)
    bounds.valid_actor(actor)
    said = {"approved": is_given, "by": actor, "comment": reason}
    payload = json_codec.encode(said, bytes_max=bounds.INPUT_BYTES_MAX, what="input")
    async with database.transaction() as session:
        found = await runs_sql.lock_run(session, run_id, tenant_id)
        if found is None:
            raise no_run(run_id)
        await catalog.flows.learn([found.snapshot_id], session)
        plan = catalog.flows.snapshot(found.snapshot_id).plan
        node_no = plan.number.get(name)
        if node_no is None:
            raise no_node(run_id, name, list(plan.number))
        key = _key_of(run_id, plan.nodes[node_no])
        standing = await signals_sql.approval_state(session, run_id, node_no, tenant_id, key)
        _require_open(run_id, name, found, standing)
        signal_id = await signals_sql.send_signal(session, tenant_id, key, run_id, actor, payload)
        is_early = standing.state != "w"
        notifications = NO_NOTIFICATIONS
        if not is_early:
            [run] = await lock_runs(session, catalog, [run_id])
            notifications = await _end(session, catalog, run, node_no, standing, signal_id)
        change = Change(
            verb="run.approve" if is_given else "run.reject",
            subject_kind="run",
            subject_id=str(run_id),
            before={"node": name, "asked": not is_early},
            after={"node": name, "approved": is_given},
        )
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return ApprovalAnswered(is_given=is_given, is_early=is_early, notifications=notifications)


def _key_of(run_id: int, node: Node) -> str:
    if node.config.get("approval") is not True:
        raise Invalid(
            f"{node.name} of run {run_id} waits for no approval: it is a node of kind {node.kind}.",
            code="not_an_approval",
            advice="See `holdfast run waiting` for what waits.",
        )
    return f"{APPROVAL_PREFIX}{run_id}:{node.name}"


def _require_open(run_id: int, name: str, run: runs_sql.LockRunRow, standing: signals_sql.ApprovalStateRow) -> None:
    """Raise `Conflict` for an answer that comes second or too late, with the reason that is closest to the node."""
    code, why = "", ""
    if standing.is_answered:
        said = json_codec.decode(standing.payload or b"null")
        is_given = isinstance(said, dict) and said.get("approved") is True
        who = standing.actor or "an unnamed caller"
        code, why = "approval_answered", f"{who} {'approved' if is_given else 'rejected'} it already"
    elif standing.is_overdue:
        code, why = "approval_overdue", "its time is over"
    elif standing.state in _NODE_WORDS:
        code, why = "approval_over", f"it is {_NODE_WORDS[standing.state]} already"
    elif run.state != "o" or run.is_canceled:
        code, why = "run_not_open", f"the run is {ENDS.get(run.state, 'being canceled')}"
    if code:
        raise Conflict(
            f"The approval of {name} of run {run_id} cannot be answered: {why}.",
            code=code,
            advice=f"See `holdfast run why {run_id}`; a node that runs again asks again.",
            run_id=str(run_id),
            node=name,
        )


async def _end(
    session: Session,
    catalog: Catalog,
    run: LockedRun,
    node_no: int,
    standing: signals_sql.ApprovalStateRow,
    signal_id: int,
) -> Notifications:
    run.progress.rows[node_no] = NodeRow(node_no, "w", attempt=standing.attempt, generation=standing.generation)
    run.left += 1
    signal = await signals_sql.read_signal(session, signal_id, run.row.run_id)
    assert signal is not None, "it was just sent"
    run.ends.append(await take(session, run, node_no, signal))
    return await advance(session, catalog, [run])
