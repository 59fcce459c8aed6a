"""Signals: events from outside that nodes wait for, approvals among them, and the deadline of a wait.

An event is kept, then delivered; a wait begins, then looks for events. Whoever comes second finds the other, because
both look after their commit; a pass lies beneath. An event that came while its run was already there is never missed,
and no run takes the same event for two waits. Whoever answers an approval leaves a row in the audit log.
"""

from __future__ import annotations

from typing import Any

from holdfast import wire
from holdfast.core.progress import End, NodeRow
from holdfast.core.states import TaskState
from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.locked import LockedRun, lock_runs
from holdfast.dispatcher.news import NO_NEWS, News
from holdfast.dispatcher.one_by_one import one_by_one
from holdfast.dispatcher.release import advance
from holdfast.dispatcher.special import APPROVAL_PREFIX, end_special, fail_special
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_SEND_SIGNAL = sql("send_signal")
_ANSWERED_WAITS = sql("answered_waits")
_OVERDUE_WAITS = sql("overdue_waits")
_READ_SIGNAL = sql("read_signal")
_WAITING_NODE = sql("waiting_node")

WAITS_BATCH = 500
REJECTED_CODE = "approval_rejected"
WAIT_TIMEOUT_CODE = "DAG_TASK_EXECUTION_TIMEOUT"
WAITING = ("w",)


async def send_signal(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    wait_key: str,
    payload: bytes,
    *,
    run_id: int | None = None,
    actor: str = "",
) -> News:
    """Keep an event and give it to whoever waits for it now."""
    async with database.transaction() as session:
        await session.fetch(_SEND_SIGNAL, tenant_id, wait_key, run_id, actor, payload)
        if wait_key.startswith(APPROVAL_PREFIX):
            await _record_answer(session, tenant_id, wait_key.removeprefix(APPROVAL_PREFIX), payload, actor)
    return await deliver_once(database, catalog, wait_key=wait_key)


async def _record_answer(session: Session, tenant_id: int, place: str, payload: bytes, actor: str) -> None:
    number, _, node = place.partition(":")
    answer = wire.decode(payload)
    fields = answer if isinstance(answer, dict) else {}
    is_given = fields.get("approved") is True
    verb = "run.approve" if is_given else "run.reject"
    after = {"node": node, "approved": is_given}
    change = Change(verb=verb, subject_kind="run", subject_id=number, before={"node": node}, after=after)
    await audit(session, tenant_id, [change], actor=actor, reason=str(fields.get("comment") or ""))


async def deliver_once(
    database: Database, catalog: Catalog, *, wait_key: str | None = None, limit: int = WAITS_BATCH
) -> News:
    """End waits whose event came, at most `limit`."""

    async def take(session: Session, row: Any) -> News:
        return await _end_wait(session, catalog, row["run_id"], row["node_no"], row["signal_id"])

    return await one_by_one(database, _ANSWERED_WAITS, wait_key, limit=limit, what="deliver", work=take)


async def expire_waits_once(database: Database, catalog: Catalog, *, limit: int = WAITS_BATCH) -> News:
    """End waits whose deadline passed, at most `limit`."""

    async def expire(session: Session, row: Any) -> News:
        return await _end_wait(session, catalog, row["run_id"], row["node_no"], None)

    return await one_by_one(database, _OVERDUE_WAITS, limit=limit, what="expire", work=expire)


async def _end_wait(session: Session, catalog: Catalog, run_id: int, node_no: int, signal_id: int | None) -> News:
    runs = await lock_runs(session, catalog, [run_id])
    waiting = await session.fetchrow(_WAITING_NODE, run_id, node_no) if runs else None
    if waiting is None or (signal_id is None and not waiting["is_overdue"]):
        return NO_NEWS
    [run] = runs
    run.progress.rows[node_no] = NodeRow(node_no, "w", attempt=waiting["attempt"], generation=waiting["generation"])
    run.left += 1
    if signal_id is None:
        run.ends.append(await _time_out(session, run, node_no))
    else:
        run.ends.append(await _take(session, run, node_no, await session.fetchrow(_READ_SIGNAL, signal_id)))
    return await advance(session, catalog, [run])


async def _take(session: Session, run: LockedRun, node_no: int, signal: Any) -> End:
    """The event's payload is the node's output; an approval that was not given fails the node."""
    node = run.snapshot.plan.nodes[node_no]
    if node.config.get("approval") is True:
        payload = wire.decode(signal["payload"])
        if not (isinstance(payload, dict) and payload.get("approved") is True):
            comment = payload.get("comment") if isinstance(payload, dict) else None
            message = f"{signal['actor'] or 'Somebody'} rejected {node.name}{f': {comment}' if comment else ''}."
            return await fail_special(session, run, node_no, WAITING, code=REJECTED_CODE, message=message)
    return await end_special(
        session, run, node_no, TaskState.COMPLETED, WAITING, output=signal["payload"], signal_id=signal["signal_id"]
    )


async def _time_out(session: Session, run: LockedRun, node_no: int) -> End:
    node = run.snapshot.plan.nodes[node_no]
    if node.config.get("on_timeout") == "skip":
        return await end_special(session, run, node_no, TaskState.SKIPPED, WAITING)
    message = f"Nothing answered {node.name} ({node.action}) within {node.timeout_seconds:g} s."
    return await fail_special(session, run, node_no, WAITING, code=WAIT_TIMEOUT_CODE, message=message)
