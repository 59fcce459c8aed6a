"""Fire schedules: decide about the slots that are due, and start their tasks or runs.

Each schedule has one transaction, under its lock: the decision about each slot, the task or run it fired and the next
slot are committed together. So any number of schedulers fire a slot once, and a crash neither loses nor repeats one. A
schedule that cannot fire records its error and does not delay the others.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.codec.cron import timing_of, zone_of
from holdfast.core.flows.bindings import accept_run_input
from holdfast.core.schedules.schedule import Due, Missed, Overlap, due_slots, first_undecided
from holdfast.core.schedules.slots import (
    REPLACED,
    SLOT_CODES,
    Cause,
    ScheduleState,
    SlotDecision,
    SlotDecisions,
    SlotState,
    judge,
)
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.runs.commands import cancel_run
from holdfast.engine.lifecycle.runs.start import RunOptions, start_runs
from holdfast.engine.lifecycle.tasks.cancel import cancel
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, InternedOrder, accept_one, intern
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict, HoldfastError, NotFound, Unavailable
from holdfast.store.catalog import Catalog
from holdfast.store.database import ANY_DB_ERROR, CONNECTION_LOST, REFUSED, Database, Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.schedules import schedules as schedules_sql

log = logging.getLogger("holdfast.schedule")

CANNOT_FIRE: tuple[type[Exception], ...] = (HoldfastError, *REFUSED)

SCHEDULE_BATCH = 100
WAIT_SECONDS = 1.0
"""How often a waiting slot is checked for whether the firing before it has ended."""

TROUBLE_SECONDS = 60.0
"""How long a schedule that could not fire waits before the next try."""


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule as a pass reads it. The fields are in the order of the statement `due_schedules`."""

    schedule_id: int
    tenant_id: int
    name: str
    kind: str
    target: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    overlap: str
    missed: str
    max_waiting: int
    queue: str | None
    policy_id: int | None
    priority: int | None
    tags: list[str] | None
    input: bytes
    wants_time: bool
    next_at: datetime | None
    counted_at: datetime
    forgotten_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    revision: int
    max_active: int | None
    now: datetime

    def moved(self, row: schedules_sql.HoldScheduleRow | schedules_sql.TakeScheduleRow) -> ScheduleRow:
        """Return a copy with the columns read under the lock; the others are unchanged as long as the revision is."""
        return msgspec.structs.replace(self, **row._asdict())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTarget:
    """What a schedule fires, with ids resolved: a task of an action or a run of a flow."""

    task: InternedOrder | None = None
    run: FlowSnapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """One firing that has not ended."""

    task_id: int | None
    run_id: int | None
    is_canceling: bool

    def __str__(self) -> str:
        return f"run {self.run_id}" if self.task_id is None else f"task {self.task_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredSlots:
    """The result of a transaction: ids of new tasks or runs, the notifications to send after it, and the firings to
    cancel."""

    fired: tuple[int, ...] = ()
    verdicts: tuple[SlotDecision, ...] = ()
    notifications: Notifications = NO_NOTIFICATIONS
    in_the_way: tuple[Firing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """How many firings a pass began, and the notifications to send after it."""

    fired: int
    notifications: Notifications


async def schedule_once(
    database: Database, catalog: Catalog, *, grace_seconds: float, limit: int = SCHEDULE_BATCH
) -> Scheduled:
    """Process at most `limit` schedules that are due.

    A schedule that fails is postponed and does not affect the others. Firings that a slot replaces are canceled after
    all schedules were processed, because a cancellation may wait for a run.
    """
    fired, notifications, crowded = 0, NO_NOTIFICATIONS, []
    for found in await schedules_sql.due_schedules(database, limit):
        row = ScheduleRow(*found)
        async with _apart(database, row):
            target = await find_target(database, catalog, row)
            settled = await _settle(database, catalog, row, target)
            fired, notifications = fired + len(settled.fired), notifications.and_(settled.notifications)
            if settled.in_the_way:
                crowded.append((row, target, settled.in_the_way))
    for row, target, in_the_way in crowded:
        async with _apart(database, row):
            notifications = notifications.and_(await make_room(database, catalog, row, in_the_way, grace_seconds))
            # Tasks that had not started are canceled at once, so the slot need not wait.
            settled = await _settle(database, catalog, row, target)
            fired, notifications = fired + len(settled.fired), notifications.and_(settled.notifications)
    return Scheduled(fired=fired, notifications=notifications)


@asynccontextmanager
async def _apart(database: Database, row: ScheduleRow) -> AsyncIterator[None]:
    """Postpone a schedule that fails and record the error on it, without ending the pass. Connection errors are
    raised."""
    try:
        yield
    except Unavailable:
        raise
    except (*CANNOT_FIRE, *ANY_DB_ERROR) as error:
        if isinstance(error, CONNECTION_LOST):
            raise
        log.warning("schedule %s cannot fire: %s", row.name, error)
        await _put_off(database, row, error)
    except Exception as error:
        # The row may be damaged or of a newer version, or this is a bug; the schedules after it must still be
        # processed.
        log.exception("schedule %s cannot fire", row.name)
        await _put_off(database, row, error)


async def _put_off(database: Database, row: ScheduleRow, error: Exception) -> None:
    said = str(error) or type(error).__name__
    await schedules_sql.record_schedule_error(database, row.schedule_id, row.revision, said[:1000], TROUBLE_SECONDS)


async def seconds_until_slot(database: Database) -> float | None:
    """Return the seconds until a schedule has to be processed; None if there is none."""
    seconds = await schedules_sql.next_schedule_check(database)
    return None if seconds is None else max(0.0, float(seconds))


async def _settle(database: Database, catalog: Catalog, row: ScheduleRow, target: ScheduleTarget) -> FiredSlots:
    async with database.transaction() as session:
        taken = await schedules_sql.take_schedule(session, row.schedule_id, row.revision)
        if taken is None:
            return FiredSlots()
        return await settle_slots(session, catalog, row.moved(taken), target)


async def find_target(database: Database, catalog: Catalog, row: ScheduleRow) -> ScheduleTarget:
    """Resolve what a schedule fires. Call it before the transaction begins: it needs sessions of its own."""
    if row.kind == "f":
        return ScheduleTarget(run=await catalog.flows.newest(row.tenant_id, row.target))
    if row.policy_id is not None and row.queue is not None:
        await catalog.learn((), [row.policy_id])
        queue, policy, usual = row.queue, catalog.policy(row.policy_id), bounds.PRIORITY_DEFAULT
    else:
        declared = await catalog.declared(row.tenant_id, row.target)
        if declared is None:
            raise NotFound(
                f"No worker ever declared the action {row.target!r}.",
                code="action_not_found",
                advice="Start its worker.",
            )
        queue, policy, usual = row.queue or declared.queue, declared.policy, declared.priority
    priority = usual if row.priority is None else row.priority
    order = EnqueueOrder(tenant_id=row.tenant_id, queue=queue, action=row.target, policy=policy, priority=priority)
    return ScheduleTarget(task=await intern(catalog, order))


async def settle_slots(session: Session, catalog: Catalog, row: ScheduleRow, target: ScheduleTarget) -> FiredSlots:
    """Decide about every due slot, in the transaction that has locked the schedule."""
    standing, firings = await read_standing(session, row)
    due = await _due(session, row)
    judged = judge(due, standing, row.now)
    settled = await carry_out(session, catalog, row, target, judged)
    waiting = len(standing.waiting) - len(judged.dropped) - (judged.released is not None)
    waiting += sum(one.state is SlotState.WAITING for one in judged.verdicts)
    look_at = row.now + timedelta(seconds=WAIT_SECONDS) if waiting and standing.paused is None else None
    if await schedules_sql.advance_schedule(session, row.schedule_id, row.next_at, due.upcoming, look_at) is None:
        raise Conflict(f"The schedule {row.name} moved on under its lock.", code="schedule_moved")
    return replace(settled, in_the_way=in_the_way(row, firings) if waiting else ())


def in_the_way(row: ScheduleRow, firings: Sequence[Firing]) -> tuple[Firing, ...]:
    """Return the firings that a waiting slot replaces: those that were not asked to stop yet."""
    if Overlap(row.overlap) is not Overlap.REPLACE or row.paused_by is not None:
        return ()
    return tuple(firing for firing in firings if not firing.is_canceling)


async def read_standing(session: Session, row: ScheduleRow) -> tuple[ScheduleState, list[Firing]]:
    """Return the state of a schedule: its firings that have not ended, and its waiting slots."""
    await schedules_sql.close_firings(session, row.schedule_id)
    rows = await schedules_sql.unsettled_slots(session, row.schedule_id)
    firings = [
        Firing(task_id=one.task_id, run_id=one.run_id, is_canceling=one.is_canceling)
        for one in rows
        if one.state == "f"
    ]
    standing = ScheduleState(
        overlap=Overlap(row.overlap),
        missed=Missed(row.missed),
        max_waiting=row.max_waiting,
        busy_with=str(firings[-1]) if firings else None,
        waiting=tuple(one.slot_at for one in rows if one.state == "w"),
        paused=None if row.paused_by is None else _paused_text(row.paused_by, row.paused_reason),
    )
    return standing, firings


def _paused_text(by: str, reason: str | None) -> str:
    return f"Paused by {by}: {reason}." if reason else f"Paused by {by}."


async def _due(session: Session, row: ScheduleRow) -> Due:
    """Return the due slots. If the clock was set back, slots that were due only by the old clock become due again."""
    timing, first, now = timing_of(row.cron, row.every_seconds, row.timezone), row.next_at, row.now
    is_set_back = row.counted_at > now
    if is_set_back:
        await schedules_sql.void_slots(session, row.schedule_id)
    start = now if first is None else min(first, now)
    decided = {found[0] for found in await schedules_sql.decided_slots(session, row.schedule_id, start)}
    if is_set_back and (first is None or first > now):
        first = first_undecided(timing, max(now, row.forgotten_until or now), decided)
    if first is None or first > now:
        return Due(older=None, newest=(), upcoming=first)
    return due_slots(timing, first, now, decided)


async def carry_out(
    session: Session,
    catalog: Catalog,
    row: ScheduleRow,
    target: ScheduleTarget,
    judged: SlotDecisions,
    *,
    actor: str | None = None,
) -> FiredSlots:
    """Execute the decisions and record them; `actor` is the operator who fired by hand."""
    fired: list[int] = []
    notifications = NO_NOTIFICATIONS
    if judged.dropped:
        await schedules_sql.drop_slots(
            session, row.schedule_id, list(judged.dropped), Cause.REPLACED.value, REPLACED, row.name
        )
    if judged.released is not None:
        number, sent = await _fire(session, catalog, row, target, judged.released)
        task_id, run_id = (None, number) if target.task is None else (number, None)
        reason = "Fired when the firing before it was over."
        released = await schedules_sql.release_slot(
            session, row.schedule_id, judged.released, task_id, run_id, reason, row.name
        )
        assert released is not None, "the lock excludes every other transaction"
        fired.append(number)
        notifications = notifications.and_(sent)
    columns: list[tuple[Any, ...]] = []
    for verdict in judged.verdicts:
        task_id = run_id = None
        if verdict.state is SlotState.FIRED:
            number, sent = await _fire(session, catalog, row, target, verdict.slot)
            task_id, run_id = (None, number) if target.task is None else (number, None)
            fired.append(number)
            notifications = notifications.and_(sent)
        when = (verdict.slot, verdict.first if verdict.count > 1 else None, verdict.count, SLOT_CODES[verdict.state])
        columns.append((*when, task_id, run_id, verdict.cause.value, verdict.reason))
    if columns:
        slots, firsts, counts, states, task_ids, run_ids, causes, reasons = map(list, zip(*columns, strict=True))
        await schedules_sql.record_slots(
            session,
            row.schedule_id,
            row.tenant_id,
            row.name,
            slots,
            firsts,
            counts,
            states,
            task_ids,
            run_ids,
            causes,
            reasons,
            actor,
        )
    return FiredSlots(fired=tuple(fired), verdicts=judged.verdicts, notifications=notifications)


async def _fire(
    session: Session, catalog: Catalog, row: ScheduleRow, target: ScheduleTarget, slot: datetime
) -> tuple[int, Notifications]:
    """Enqueue the task or start the run of one slot."""
    scheduled_for = slot.astimezone(zone_of(row.timezone)).isoformat()
    tags = (*(row.tags or ()), f"schedule:{row.name}", f"scheduled_for:{scheduled_for}")
    given = json_codec.decode(row.input)
    if row.wants_time:
        given["scheduled_for"] = scheduled_for
    if target.task is not None:
        encoded = json_codec.encode(given, bytes_max=bounds.NODE_INPUT_BYTES_MAX, what="input")
        task_id = await accept_one(session, replace(target.task, tags=list(tags)), encoded)
        return task_id, Notifications({target.task.lane_id}, [], [])
    assert target.run is not None
    accepted = accept_run_input(target.run.plan.inputs, given)
    encoded = json_codec.encode(accepted, bytes_max=bounds.NODE_INPUT_BYTES_MAX, what="input")
    options = RunOptions(priority=row.priority, tags=tags, max_active=row.max_active)
    [run_id], notifications = await start_runs(session, catalog, target.run, [encoded], options)
    return run_id, notifications


async def make_room(
    database: Database, catalog: Catalog, row: ScheduleRow, firings: Sequence[Firing], grace_seconds: float
) -> Notifications:
    """Cancel the firings that a newer slot replaces. If this process dies, the next pass finds the slot still
    waiting."""
    notifications = NO_NOTIFICATIONS
    who = {"actor": f"schedule:{row.name}", "reason": "A newer slot replaces it."}
    for firing in firings:
        if firing.run_id is not None:
            with suppress(Conflict, NotFound):
                notifications = notifications.and_(
                    await cancel_run(
                        database, catalog, row.tenant_id, firing.run_id, grace_seconds=grace_seconds, **who
                    )
                )
        elif firing.task_id is not None:
            done = await cancel(database, catalog, row.tenant_id, [firing.task_id], grace_seconds=grace_seconds, **who)
            notifications = notifications.and_(done.notifications)
    return notifications
