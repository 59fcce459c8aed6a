"""Commands on schedules: create, declare, pause, resume, fire by hand, delete.

Everything is validated before anything is stored. Only the origin of a schedule (an app's code or an operator) changes
it; any operator may pause, fire or delete it, with their name recorded. These commands, and creation by hand, are
audited; a declaration by code is recorded as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.codec.cron import timing_of
from holdfast.core.flows.graph_check import NODES_MAX
from holdfast.core.flows.node_check import is_whole
from holdfast.core.schedules.schedule import Missed, Overlap
from holdfast.core.schedules.slots import SlotDecision, SlotState, decide_manual_slot
from holdfast.core.values import bounds
from holdfast.core.values.duration import human
from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.queries.schedules import find_schedule, missing_schedule
from holdfast.engine.schedules.fire import (
    ScheduleRow,
    ScheduleTarget,
    carry_out,
    find_target,
    in_the_way,
    make_room,
    read_standing,
    settle_slots,
)
from holdfast.errors import Conflict, Invalid
from holdfast.store.database import REFUSED, Database, Session
from holdfast.store.sql.schedules import schedules as schedules_sql

NAME_CHARACTERS_MAX = 55
TAGS_MAX = bounds.TAGS_MAX - 2
WAITING_MAX = 100
WAITING_DEFAULT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDraft:
    """A schedule before it is stored. Queue and policy of an action may be left to the declaration of its workers.

    `max_active` limits how many nodes of each run of a flow are active at once.
    """

    name: str
    origin: str
    target: str
    is_flow: bool = False
    cron: str | None = None
    every_seconds: float | None = None
    timezone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    missed: Missed = Missed.LATEST
    max_waiting: int = WAITING_DEFAULT
    queue: str | None = None
    policy_id: int | None = None
    priority: int | None = None
    tags: tuple[str, ...] = ()
    input: bytes = b"{}"
    wants_time: bool = False
    max_active: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """The result of firing by hand: the task or run that began, or that the slot waits."""

    state: str
    slot: datetime
    task_id: str | None
    run_id: str | None
    reason: str


def valid_draft(draft: ScheduleDraft) -> ScheduleDraft:
    """Return the draft if it is valid; raise `Invalid` with the cause otherwise."""
    bounds.valid_action(draft.name)
    if len(draft.name) > NAME_CHARACTERS_MAX:
        raise Invalid(
            f"The name of a schedule has at most {NAME_CHARACTERS_MAX} characters, not {len(draft.name)}.",
            code="invalid_name",
            advice="Choose a shorter one.",
        )
    timing_of(draft.cron, draft.every_seconds, draft.timezone)
    if not isinstance(draft.max_waiting, int) or not 1 <= draft.max_waiting <= WAITING_MAX:
        raise Invalid(f"max_waiting must be a whole number from 1 to {WAITING_MAX}.", code="invalid_schedule")
    if len(bounds.valid_tags(draft.tags)) > TAGS_MAX:
        raise Invalid(f"A schedule has at most {TAGS_MAX} tags of its own.", code="invalid_tag")
    if draft.priority is not None:
        bounds.valid_priority(draft.priority)
    if draft.max_active is not None:
        _check_max_active(draft)
    if draft.queue is not None:
        bounds.valid_queue(draft.queue)
    bounds.valid_action(draft.target)
    return draft


def _check_max_active(draft: ScheduleDraft) -> None:
    if not is_whole(draft.max_active, 1, NODES_MAX):
        raise Invalid(
            f"max_active={draft.max_active!r} is no whole number from 1 to {NODES_MAX}.", code="invalid_schedule"
        )
    if not draft.is_flow:
        raise Invalid(
            "Only runs of a flow have nodes to limit.", code="invalid_schedule", advice="Limit the queue of the action."
        )


async def create_schedule(database: Database, tenant_id: int, draft: ScheduleDraft, *, reason: str = "") -> None:
    """Store a new schedule of its origin; `Conflict` if the name is taken."""
    columns = await _columns(database, tenant_id, draft)
    async with database.transaction() as session:
        is_new = await schedules_sql.create_schedule(session, *columns) is not None
        if is_new:
            when = draft.cron if draft.every_seconds is None else f"every {human(draft.every_seconds)}"
            after = {"exists": True, "target": draft.target, "when": when, "timezone": draft.timezone}
            change = _change("schedule.create", draft.name, {"exists": False}, after)
            await audit(session, tenant_id, [change], actor=draft.origin, reason=reason)
    if not is_new:
        raise Conflict(
            f"There is a schedule {draft.name} already.",
            code="schedule_exists",
            advice=f"See `holdfast schedule show {draft.name}`.",
        )


async def declare_schedule(database: Database, tenant_id: int, draft: ScheduleDraft) -> bool:
    """Create or update a schedule from its code; return False if another origin owns the name."""
    columns = await _columns(database, tenant_id, draft)
    if (
        await schedules_sql.create_schedule(database, *columns) is not None
        or await schedules_sql.change_schedule(database, *columns) is not None
    ):
        return True
    return bool(await schedules_sql.schedule_origin(database, tenant_id, draft.name) == draft.origin)


async def _columns(database: Database, tenant_id: int, draft: ScheduleDraft) -> tuple[Any, ...]:
    valid_draft(draft)
    timing = timing_of(draft.cron, draft.every_seconds, draft.timezone)
    next_at = next(timing.slots_after(await schedules_sql.database_time(database)), None)
    what = (tenant_id, draft.name, draft.origin, "f" if draft.is_flow else "a", draft.target)
    when = (draft.cron, draft.every_seconds, draft.timezone, draft.overlap.value, draft.missed.value, draft.max_waiting)
    how = (draft.queue, draft.policy_id, draft.priority, list(draft.tags) or None, draft.input, draft.wants_time)
    return (*what, *when, *how, next_at, draft.max_active)


async def pause(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Pause a schedule; return False if it was already paused."""
    await find_schedule(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        is_changed = bool(await schedules_sql.pause_schedule(session, tenant_id, name, actor, reason))
        if is_changed:
            change = _change("schedule.pause", name, {"paused": False}, {"paused": True})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return is_changed


async def resume(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Resume a schedule; return False if it was not paused. Slots during the pause are not fired later."""
    row = await find_schedule(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        row = await _hold(session, row)
        if row.paused_by is None:
            return False
        before = {"paused": True, "paused_by": row.paused_by, "paused_reason": row.paused_reason}
        await settle_slots(session, engine.catalog, row, ScheduleTarget())
        is_changed = bool(await schedules_sql.resume_schedule(session, tenant_id, name, actor, reason))
        if is_changed:
            change = _change("schedule.resume", name, before, {"paused": False})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
        return is_changed


async def fire(
    engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str, once: IdempotentRequest | None = None
) -> Fired:
    """Fire a schedule now, paused or not; `once` stores the response. `Conflict` if the overlap rule would skip the
    slot."""
    database, catalog = engine.database, engine.catalog
    if once is not None:
        await once.look(database)
    row = await find_schedule(database, tenant_id, name)
    target = await find_target(database, catalog, row)
    try:
        async with database.transaction() as session:
            if once is not None:
                await once.begin(session)
            row = await _hold(session, row)
            standing, firings = await read_standing(session, row)
            judged = decide_manual_slot(row.now, standing, reason)
            [verdict] = judged.verdicts
            if verdict.state is SlotState.SKIPPED:
                raise Conflict(
                    f"The schedule {name} was not fired: {verdict.reason}",
                    code="schedule_overlap",
                    advice="Wait for it or cancel it.",
                )
            settled = await carry_out(session, catalog, row, target, judged, actor=actor)
            await schedules_sql.check_schedule_soon(session, row.schedule_id)
            change = _change("schedule.fire", name, None, {"state": verdict.state.value, "slot": row.now.isoformat()})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
            fired = _fired(row, target, verdict, settled.fired)
            if once is not None:
                await once.keep(session, fired)
    except REFUSED as error:
        raise Conflict(
            f"The schedule {name} has a slot at this very moment.", code="slot_taken", advice="Try again."
        ) from error
    notifications = settled.notifications
    if verdict.state is SlotState.WAITING:
        grace = engine.settings.worker.cancel_grace_seconds
        notifications = notifications.and_(await make_room(database, catalog, row, in_the_way(row, firings), grace))
    await publish_and_propagate(engine, notifications)
    return fired


def _fired(row: ScheduleRow, target: ScheduleTarget, verdict: SlotDecision, fired: Sequence[int]) -> Fired:
    number = str(fired[-1]) if verdict.state is SlotState.FIRED else None
    return Fired(
        state=verdict.state.value,
        slot=row.now,
        task_id=None if target.task is None else number,
        run_id=number if target.task is None else None,
        reason=verdict.reason,
    )


async def _hold(session: Session, row: ScheduleRow) -> ScheduleRow:
    held = await schedules_sql.hold_schedule(session, row.schedule_id, row.revision)
    if held is None:
        raise Conflict(
            f"The schedule {row.name} changed meanwhile.", code="schedule_changed", advice="Look at it and try again."
        )
    return row.moved(held)


async def delete_schedule(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> None:
    """Delete a schedule and its slots. Its tasks and runs stay; code that declares it creates it again."""
    async with engine.database.transaction() as session:
        is_gone = bool(await schedules_sql.delete_schedule(session, tenant_id, name, actor, reason))
        if is_gone:
            change = _change("schedule.delete", name, {"exists": True}, {"exists": False})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
    if not is_gone:
        raise await missing_schedule(engine.database, tenant_id, name)


def _change(verb: str, name: str, before: Any, after: Any) -> Change:
    return Change(verb=verb, subject_kind="schedule", subject_id=name, before=before, after=after)
