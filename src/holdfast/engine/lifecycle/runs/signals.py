"""Signals: events from outside that nodes wait for, and timeouts of waits.

A sender stores the event and then delivers it; a waiting node stores its wait and then searches for events. Both search
after their commit, so the second one finds the first; a maintenance pass covers crashes. An event that arrives while
its run, or the run's parent, exists is never missed, and no run uses one event for two waits. `approvals` handles the
answers to approvals; an answer that came early is delivered here. An event that an operator sends is audited.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.flows.progress import End, NodeRow
from holdfast.core.tasks.states import ENDS, TaskState
from holdfast.core.values.bounds import no_run
from holdfast.engine.audit import Change, audit
from holdfast.engine.for_each_row import for_each_row
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.lifecycle.runs.locked_run import LockedRun, lock_runs
from holdfast.engine.lifecycle.runs.release import advance
from holdfast.engine.lifecycle.runs.taskless_nodes import APPROVAL_PREFIX, end_taskless, fail_taskless
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.engine.queries.waiting import WaitView, waits_of
from holdfast.errors import Conflict, Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.flows import runs as runs_sql
from holdfast.store.sql.flows import signals as signals_sql

WAITS_BATCH = 500
LOOK_WAITS = 1_000
"""How many waits a pass reads; the next pass continues after them. It finds events that a crash left undelivered."""
START = (0, -1)
WAITS_TOLD = 100
REJECTED_CODE = "approval_rejected"
WAIT_TIMEOUT_CODE = "DAG_TASK_EXECUTION_TIMEOUT"
WAITING = ("w",)


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event. `waits` are the first of the nodes that waited for it; others may wait for it later."""

    wait_key: str
    waits: list[WaitView]


async def send_signal(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    wait_key: str,
    payload: bytes,
    *,
    run_id: int | None = None,
    actor: str = "",
) -> Notifications:
    """Store an event and deliver it to the nodes that wait for it now."""
    _require_event(wait_key)
    async with database.transaction() as session:
        if run_id is not None:
            await _require_run(session, tenant_id, run_id)
        await signals_sql.send_signal(session, tenant_id, wait_key, run_id, actor, payload)
    return await _deliver_sent(database, catalog, tenant_id, wait_key, run_id)


async def send_by_hand(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    wait_key: str,
    payload: bytes,
    *,
    run_id: int | None,
    actor: str,
    reason: str,
    once: IdempotentRequest | None = None,
) -> tuple[Sent, Notifications]:
    """Send an event for an operator: also return the nodes that waited for it, and audit it."""
    _require_event(wait_key)
    async with database.transaction() as session:
        if once is not None:
            await once.begin(session)
        if run_id is not None:
            await _require_run(session, tenant_id, run_id)
        waits = await waits_of(session, catalog, tenant_id, wait_key=wait_key, run_id=run_id, limit=WAITS_TOLD)
        signal_id = await signals_sql.send_signal(session, tenant_id, wait_key, run_id, actor, payload)
        sent = Sent(wait_key=wait_key, waits=waits)
        if once is not None:
            await once.keep(session, sent)
        after = {"signal": signal_id, "run": None if run_id is None else str(run_id), "waits": len(waits)}
        change = Change(verb="run.signal", subject_kind="event", subject_id=wait_key, before=None, after=after)
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return sent, await _deliver_sent(database, catalog, tenant_id, wait_key, run_id)


def _require_event(wait_key: str) -> None:
    if wait_key.startswith(APPROVAL_PREFIX):
        raise Invalid(
            f"{wait_key[:80]} is an approval, not an event.",
            code="invalid_event",
            advice="Answer it with `holdfast run approve` or `holdfast run reject`.",
        )


async def _require_run(session: Session, tenant_id: int, run_id: int) -> None:
    """Check that the run is open, under its lock, so that it does not end before the event is stored."""
    run = await runs_sql.lock_run(session, run_id, tenant_id)
    if run is None:
        raise no_run(run_id)
    if run.state != "o":
        ended = ENDS[run.state]
        raise Conflict(f"Run {run_id} waits for nothing: it is {ended}.", code="run_not_open", run_id=str(run_id))


async def _deliver_sent(
    database: Database, catalog: Catalog, tenant_id: int, wait_key: str, run_id: int | None
) -> Notifications:
    """End the waits for an event that was sent to one run and its child runs, or to all waits with its key."""
    if run_id is not None:
        return await deliver_to_runs(database, catalog, await signals_sql.open_runs_below(database, run_id))
    return await _deliver(database, catalog, tenant_id, wait_key, None, None, None, None, None)


async def deliver_to_runs(database: Database, catalog: Catalog, run_ids: Iterable[int]) -> Notifications:
    """End the waits of some runs whose event has arrived."""
    return await _deliver(database, catalog, None, None, list(run_ids), None, None, None, None)


class SignalsDelivered(msgspec.Struct, frozen=True):
    """The result of a delivery pass: notifications, and the wait after which the next pass begins."""

    notifications: Notifications
    after: tuple[int, int]


async def deliver_once(
    database: Database, catalog: Catalog, *, after: tuple[int, int] = START, limit: int = LOOK_WAITS
) -> SignalsDelivered:
    """End waits whose event has arrived, among the next `limit` waits."""
    edge = await signals_sql.last_wait_of_page(database, *after, limit)
    if edge is None:
        # Usually no node waits; planning the delivery query would then cost more than all the other passes.
        return SignalsDelivered(NO_NOTIFICATIONS, START)
    last = (edge.run_id, edge.node_no)
    notifications = await _deliver(database, catalog, None, None, None, *after, *last, limit=limit)
    return SignalsDelivered(notifications, last if edge.waits == limit else START)


async def _deliver(database: Database, catalog: Catalog, *which: Any, limit: int = WAITS_BATCH) -> Notifications:
    async def take(session: Session, row: signals_sql.AnsweredWaitsRow) -> Notifications:
        return await _end_wait(session, catalog, row.run_id, row.node_no, row.signal_id)

    return await for_each_row(
        database, partial(signals_sql.answered_waits, database, *which), limit=limit, what="deliver", work=take
    )


async def expire_waits_once(database: Database, catalog: Catalog, *, limit: int = WAITS_BATCH) -> Notifications:
    """End at most `limit` waits whose deadline has passed."""

    async def expire(session: Session, row: signals_sql.OverdueWaitsRow) -> Notifications:
        return await _end_wait(session, catalog, row.run_id, row.node_no, None)

    return await for_each_row(
        database, partial(signals_sql.overdue_waits, database), limit=limit, what="expire", work=expire
    )


async def _end_wait(
    session: Session, catalog: Catalog, run_id: int, node_no: int, signal_id: int | None
) -> Notifications:
    runs = await lock_runs(session, catalog, [run_id])
    waiting = await signals_sql.waiting_node(session, run_id, node_no) if runs else None
    if waiting is None or (signal_id is None and not waiting.is_overdue):
        return NO_NOTIFICATIONS
    signal = None
    if signal_id is not None:
        await signals_sql.lock_signal(session, signal_id, run_id)
        signal = await signals_sql.read_signal(session, signal_id, run_id)
    if signal_id is not None and signal is None:
        return NO_NOTIFICATIONS
    [run] = runs
    run.progress.rows[node_no] = NodeRow(node_no, "w", attempt=waiting.attempt, generation=waiting.generation)
    run.left += 1
    run.ends.append(await (_time_out(session, run, node_no) if signal is None else take(session, run, node_no, signal)))
    return await advance(session, catalog, [run])


async def take(session: Session, run: LockedRun, node_no: int, signal: signals_sql.ReadSignalRow) -> End:
    """Complete the node with the payload of the event as its output; a rejected approval fails the node."""
    node = run.snapshot.plan.nodes[node_no]
    if node.config.get("approval") is True:
        payload = json_codec.decode(signal.payload)
        if not (isinstance(payload, dict) and payload.get("approved") is True):
            comment = payload.get("comment") if isinstance(payload, dict) else None
            message = f"{signal.actor or 'An unnamed caller'} rejected {node.name}{f': {comment}' if comment else ''}."
            return await fail_taskless(session, run, node_no, WAITING, code=REJECTED_CODE, message=message)
    return await end_taskless(
        session, run, node_no, TaskState.COMPLETED, WAITING, output=signal.payload, signal_id=signal.signal_id
    )


async def _time_out(session: Session, run: LockedRun, node_no: int) -> End:
    node = run.snapshot.plan.nodes[node_no]
    if node.config.get("on_timeout") == "skip":
        return await end_taskless(session, run, node_no, TaskState.SKIPPED, WAITING)
    message = f"Nothing answered {node.name} ({node.action}) within {node.timeout_seconds:g} s."
    return await fail_taskless(session, run, node_no, WAITING, code=WAIT_TIMEOUT_CODE, message=message)
