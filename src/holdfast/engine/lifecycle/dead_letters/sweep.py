"""The sweep over dead letters: re-drive those requested, resolve those that succeeded, park those that keep failing.

A bounded pass, at start-up and on each tick, run by any number of processes concurrently. `judge` decides about each
dead letter. This module locks them, evaluates what is true under the lock, and stores the transition. It never performs
an effect: a re-drive puts the task or run back into its queue.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.dead_letters.dead_letter import (
    AUDIT_OUTCOME,
    RECOVERABLE,
    RESUME_REASON,
    SWEEP_ACTOR,
    DeadLetterEvidence,
    DeadLetterState,
    OwningRun,
    SweepDecision,
    judge,
    owner_state_of,
)
from holdfast.engine.audit import Change, audit
from holdfast.engine.for_each_row import apart
from holdfast.engine.lifecycle.dead_letters.open_for_node import resolve_completed_nodes
from holdfast.engine.lifecycle.dead_letters.requeue import (
    Dispatched,
    RequeueRequest,
    dispatch_run,
    dispatch_tasks,
    letters_of,
)
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.dead_letters import repair as repair_sql
from holdfast.store.sql.dead_letters import sweep as sweep_sql
from holdfast.store.sql.flows import runs as runs_sql

SWEEP_BATCH = 500
REPAIR_BATCH = 500
_BY = RequeueRequest(SWEEP_ACTOR, RESUME_REASON)


class Swept(msgspec.Struct):
    """The result of a pass: the number of stored transitions, and the notifications to send.

    `after` is the cursor of the next page; 0 after the last page.
    """

    count: int = 0
    after: int = 0
    notifications: Notifications = NO_NOTIFICATIONS


async def sweep_once(database: Database, catalog: Catalog, *, after: int = 0, limit: int = SWEEP_BATCH) -> Swept:
    """Process at most `limit` dead letters, those after an id. Dead letters that stay as they are, or that another
    process changed first, are not counted."""
    page = await sweep_sql.dead_letters_to_sweep(database, after, limit)
    swept = Swept(after=page[-1].dead_letter_id if len(page) == limit else 0)
    if plain := [row.dead_letter_id for row in page if row.run_id is None]:
        async with database.transaction() as session:
            await _sweep_tasks(session, plain, swept)
    # A run with several dead letters is requeued once for all of them.
    for run_id, tenant_id in dict.fromkeys((row.run_id, row.tenant_id) for row in page):
        if run_id is not None:
            with apart("sweep", {"run_id": run_id}):
                async with database.transaction() as session:
                    await _sweep_run(session, catalog, run_id, tenant_id, swept)
    return swept


async def repair_letters_once(database: Database, *, limit: int = REPAIR_BATCH) -> int:
    """Repair at most `limit` dead letters of each kind that a settlement did not update; return how many.

    Returns dead letters to the sweep whose task has stopped unnoticed, parks those whose task or run was canceled, and
    closes those of replaced runs and of nodes that have completed since.
    """
    async with database.transaction() as session:
        roused = await repair_sql.requeue_stale_dead_letters(session, limit)
        parked = await repair_sql.park_abandoned_dead_letters(session, limit, SWEEP_ACTOR)
        closed = await repair_sql.close_replaced(session, None, limit, SWEEP_ACTOR)
        completed = await resolve_completed_nodes(session, None, limit=limit)
    return len(roused) + len(parked) + len(closed) + completed


async def _sweep_tasks(session: Session, dead_letter_ids: Sequence[int], swept: Swept) -> None:
    rows = await sweep_sql.lock_dead_letters(session, list(dead_letter_ids))
    judged = [(row, judge(_facts(row, OwningRun(row.stand), row.owner_id), at=row.at)) for row in rows]
    await _conclude(session, judged, swept)
    due = [row for row, verdict in judged if verdict is SweepDecision.REDRIVE]
    for tenant_id in sorted({row.tenant_id for row in due}):
        letters = letters_of(row for row in due if row.tenant_id == tenant_id)
        await _count(session, tenant_id, swept, await dispatch_tasks(session, tenant_id, letters, _BY))


async def _sweep_run(session: Session, catalog: Catalog, run_id: int, tenant_id: int, swept: Swept) -> None:
    rows = await sweep_sql.lock_run_dead_letters(session, run_id, tenant_id)
    run = await runs_sql.lock_run(session, run_id, tenant_id)
    stand = OwningRun.GONE if run is None else _stand(run)
    owner_id = None if run is None else run.tenant_id
    # A dead letter whose node is running is left as it is, even if other nodes of the run failed: a re-drive would not
    # touch it.
    resting = await _resting(session, run_id, rows) if stand in RECOVERABLE else frozenset()
    otherwise = OwningRun.ACTIVE if stand in RECOVERABLE else stand
    judged = []
    for row in rows:
        own = stand if row.node_no in resting else otherwise
        judged.append((row, judge(_facts(row, own, owner_id), at=row.at)))
    await _conclude(session, judged, swept)
    if due := letters_of(row for row, verdict in judged if verdict is SweepDecision.REDRIVE):
        try:
            done, _ = await dispatch_run(session, catalog, tenant_id, run_id, due, (), _BY)
        except Conflict:
            return
        await _count(session, tenant_id, swept, done)


async def _resting(session: Session, run_id: int, rows: Sequence[sweep_sql.LockRunDeadLettersRow]) -> frozenset[int]:
    """Return the nodes among the dead letters of a locked run that a re-drive would reset."""
    found = await sweep_sql.nodes_at_rest(session, run_id, [row.node_no for row in rows])
    return frozenset(row.node_no for row in found)


async def _conclude(
    session: Session,
    judged: Sequence[tuple[sweep_sql.LockDeadLettersRow | sweep_sql.LockRunDeadLettersRow, SweepDecision]],
    swept: Swept,
) -> None:
    """Store the final transitions: resolve superseded dead letters, park exhausted ones."""
    if ids := [row.dead_letter_id for row, found in judged if found is SweepDecision.RESOLVE]:
        swept.count += len(await sweep_sql.resolve_superseded(session, ids, SWEEP_ACTOR))
    if ids := [row.dead_letter_id for row, found in judged if found is SweepDecision.EXHAUST]:
        swept.count += len(await sweep_sql.exhaust_dead_letters(session, ids, SWEEP_ACTOR))


def _facts(
    row: sweep_sql.LockDeadLettersRow | sweep_sql.LockRunDeadLettersRow, stand: OwningRun, owner_id: int | None
) -> DeadLetterEvidence:
    return DeadLetterEvidence(
        state=DeadLetterState(row.state),
        tenant_id=row.tenant_id,
        owner_id=owner_id,
        stand=stand,
        is_superseded=row.is_superseded,
        dispatches=row.dispatches,
        dispatches_max=row.dispatches_max,
        dispatched_at=row.dispatched_at,
        can_retry=row.can_retry,
    )


def _stand(run: runs_sql.LockRunRow) -> OwningRun:
    return owner_state_of(state=run.state, failed=run.failed, is_paused=run.is_paused, is_canceled=run.is_canceled)


async def _count(session: Session, tenant_id: int, swept: Swept, done: Dispatched) -> None:
    """Count the requeued dead letters and write their audit records, as the last step of the transaction."""
    swept.count += len(done.letters)
    swept.notifications = swept.notifications.and_(done.notifications)
    after = {"state": DeadLetterState.RETRYING.value, "outcome": AUDIT_OUTCOME}
    changes = [
        Change(
            verb="dead.dispatch",
            subject_kind="dead_letter",
            subject_id=str(letter.dead_letter_id),
            before={"state": letter.state},
            after=after,
        )
        for letter in done.letters
    ]
    await audit(session, tenant_id, changes, actor=SWEEP_ACTOR, reason=RESUME_REASON)
