"""Schedules: keep, pause, resume, fire by hand, delete; and how they stand.

Everything is checked before anything is stored. Whoever keeps a schedule, an app's code or a person, is the only one
who changes it; anybody may pause, fire or delete it, and says who. Each of these, and making one by hand, leaves its
row in the audit log; what code declares is told by an event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any

from holdfast import wire
from holdfast.core import limits
from holdfast.core.duration import human
from holdfast.core.schedule import Missed, Overlap
from holdfast.core.schedule_words import ScheduleFacts, describe
from holdfast.core.slots import SLOT_CODES, SlotState, judge_by_hand
from holdfast.cron import timing_of, zone_of
from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.follow import follow_up
from holdfast.dispatcher.schedule import (
    ScheduleRow,
    Target,
    carry_out,
    find_target,
    in_the_way,
    make_room,
    read_standing,
    settle_slots,
)
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.database import REFUSED, Database, Session
from holdfast.store.statements import sql

_CREATE = sql("create_schedule")
_CHANGE = sql("change_schedule")
_ORIGIN = sql("schedule_origin")
_TIME = sql("database_time")
_FIND = sql("find_schedule")
_HOLD = sql("hold_schedule")
_LOOK_SOON = sql("look_soon")
_PAUSE = sql("pause_schedule")
_RESUME = sql("resume_schedule")
_DELETE = sql("delete_schedule")
_LIST = sql("list_schedules")
_NAMES = sql("schedule_names")
_SLOTS = sql("list_slots")

NAME_CHARACTERS_MAX = 55
TAGS_MAX = limits.TAGS_MAX - 2
WAITING_MAX = 100
WAITING_DEFAULT = 10
LIST_MAX = 1_000
UPCOMING = 5

_STATES = {code: state for state, code in SLOT_CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDraft:
    """A schedule before it is kept. Queue and policy of an action may be left to what workers declare for it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """One slot, or several that fared alike, as people see it."""

    slot: datetime
    first: datetime | None
    slots: int
    state: str
    cause: str
    reason: str
    by: str | None
    decided_at: datetime
    task_id: str | None
    run_id: str | None
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """One schedule as people see it. `upcoming` are its next slots, in its own zone."""

    name: str
    kind: str
    target: str
    when: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    overlap: str
    missed: str
    max_waiting: int
    origin: str
    queue: str | None
    priority: int | None
    tags: list[str]
    input: Any
    wants_time: bool
    next_at: datetime | None
    upcoming: list[datetime]
    last: SlotView | None
    waiting: int
    passed_over: Mapping[str, int]
    paused: bool
    paused_by: str | None
    paused_reason: str | None
    paused_at: datetime | None
    trouble: str | None
    created_at: datetime
    at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What firing by hand did: the task or run it began, or that the slot waits."""

    state: str
    slot: datetime
    task_id: str | None
    run_id: str | None
    reason: str


def valid_draft(draft: ScheduleDraft) -> ScheduleDraft:
    """Accept a schedule, or say what is wrong with it."""
    limits.valid_action(draft.name)
    if len(draft.name) > NAME_CHARACTERS_MAX:
        raise Invalid(
            f"The name of a schedule has at most {NAME_CHARACTERS_MAX} characters, not {len(draft.name)}.",
            code="invalid_name",
            advice="Choose a shorter one.",
        )
    timing_of(draft.cron, draft.every_seconds, draft.timezone)
    if not isinstance(draft.max_waiting, int) or not 1 <= draft.max_waiting <= WAITING_MAX:
        raise Invalid(f"max_waiting must be a whole number from 1 to {WAITING_MAX}.", code="invalid_schedule")
    if len(limits.valid_tags(draft.tags)) > TAGS_MAX:
        raise Invalid(f"A schedule has at most {TAGS_MAX} tags of its own.", code="invalid_tag")
    if draft.priority is not None:
        limits.valid_priority(draft.priority)
    if draft.queue is not None:
        limits.valid_queue(draft.queue)
    limits.valid_action(draft.target)
    return draft


async def create_schedule(database: Database, tenant_id: int, draft: ScheduleDraft, *, reason: str = "") -> None:
    """Keep a new schedule in the name of its origin; `Conflict` if there is one of that name."""
    columns = await _columns(database, tenant_id, draft)
    async with database.transaction() as session:
        is_new = await session.fetchval(_CREATE, *columns) is not None
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
    """Keep a schedule as its code says it now; False if somebody else keeps one of that name."""
    columns = await _columns(database, tenant_id, draft)
    if await database.fetchval(_CREATE, *columns) is not None or await database.fetchval(_CHANGE, *columns) is not None:
        return True
    return bool(await database.fetchval(_ORIGIN, tenant_id, draft.name) == draft.origin)


async def _columns(database: Database, tenant_id: int, draft: ScheduleDraft) -> tuple[Any, ...]:
    valid_draft(draft)
    timing = timing_of(draft.cron, draft.every_seconds, draft.timezone)
    next_at = next(timing.slots_after(await database.fetchval(_TIME)), None)
    what = (tenant_id, draft.name, draft.origin, "f" if draft.is_flow else "a", draft.target)
    when = (draft.cron, draft.every_seconds, draft.timezone, draft.overlap.value, draft.missed.value, draft.max_waiting)
    how = (draft.queue, draft.policy_id, draft.priority, list(draft.tags) or None, draft.input, draft.wants_time)
    return (*what, *when, *how, next_at)


async def pause(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Fire nothing of a schedule until it is resumed; False if it was paused already."""
    await find_schedule(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        is_changed = bool(await session.fetchval(_PAUSE, tenant_id, name, actor, reason))
        if is_changed:
            change = _change("schedule.pause", name, {"paused": False}, {"paused": True})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return is_changed


async def resume(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> bool:
    """Let a schedule fire again; False if it was not paused. Slots of the pause are not caught up with."""
    row = await find_schedule(engine.database, tenant_id, name)
    async with engine.database.transaction() as session:
        row = await _hold(session, row)
        if row.paused_by is None:
            return False
        before = {"paused": True, "paused_by": row.paused_by, "paused_reason": row.paused_reason}
        await settle_slots(session, engine.catalog, row, Target())
        is_changed = bool(await session.fetchval(_RESUME, tenant_id, name, actor, reason))
        if is_changed:
            change = _change("schedule.resume", name, before, {"paused": False})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
        return is_changed


async def fire(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> Fired:
    """Fire a schedule now, paused or not. The overlap policy holds: `Conflict` where it would skip the slot."""
    database, catalog = engine.database, engine.catalog
    row = await find_schedule(database, tenant_id, name)
    target = await find_target(database, catalog, row)
    try:
        async with database.transaction() as session:
            row = await _hold(session, row)
            standing, firings = await read_standing(session, row)
            judged = judge_by_hand(row.now, standing, reason)
            [verdict] = judged.verdicts
            if verdict.state is SlotState.SKIPPED:
                raise Conflict(
                    f"The schedule {name} was not fired: {verdict.reason}",
                    code="schedule_overlap",
                    advice="Wait for it or cancel it.",
                )
            settled = await carry_out(session, catalog, row, target, judged, actor=actor)
            await session.fetch(_LOOK_SOON, row.schedule_id)
            change = _change("schedule.fire", name, None, {"state": verdict.state.value, "slot": row.now.isoformat()})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
    except REFUSED as error:
        raise Conflict(
            f"The schedule {name} has a slot at this very moment.", code="slot_taken", advice="Try again."
        ) from error
    news = settled.news
    if verdict.state is SlotState.WAITING:
        grace = engine.settings.worker.cancel_grace_seconds
        news = news.and_(await make_room(database, catalog, row, in_the_way(row, firings), grace))
    await follow_up(engine, news)
    number = str(settled.fired[-1]) if verdict.state is SlotState.FIRED else None
    is_task = target.task is not None
    return Fired(
        state=verdict.state.value,
        slot=row.now,
        task_id=number if is_task else None,
        run_id=None if is_task else number,
        reason=verdict.reason,
    )


async def _hold(session: Session, row: ScheduleRow) -> ScheduleRow:
    held = await session.fetchrow(_HOLD, row.schedule_id, row.revision)
    if held is None:
        raise Conflict(
            f"The schedule {row.name} changed meanwhile.", code="schedule_changed", advice="Look at it and try again."
        )
    return row.moved(held)


async def delete_schedule(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str) -> None:
    """Forget a schedule and its slots. What it fired stays; code that declares it brings it back."""
    async with engine.database.transaction() as session:
        is_gone = bool(await session.fetchval(_DELETE, tenant_id, name, actor, reason))
        if is_gone:
            change = _change("schedule.delete", name, {"exists": True}, {"exists": False})
            await audit(session, tenant_id, [change], actor=actor, reason=reason)
    if not is_gone:
        raise await _missing(engine.database, tenant_id, name)


def _change(verb: str, name: str, before: Any, after: Any) -> Change:
    return Change(verb=verb, subject_kind="schedule", subject_id=name, before=before, after=after)


async def find_schedule(database: Database, tenant_id: int, name: str) -> ScheduleRow:
    """The schedule of that name, or `NotFound`."""
    found = await database.fetchrow(_FIND, tenant_id, name)
    if found is None:
        raise await _missing(database, tenant_id, name)
    return ScheduleRow(*found)


async def _missing(database: Database, tenant_id: int, name: str) -> NotFound:
    names = await schedule_names(database, tenant_id)
    near = get_close_matches(name, names, n=1)
    advice = f"Did you mean {near[0]}?" if near else "See `holdfast schedule list`."
    return NotFound(f"There is no schedule {name!r}.", code="schedule_not_found", advice=advice)


async def schedule_names(database: Database, tenant_id: int) -> list[str]:
    """The names of the first thousand schedules."""
    return [row["name"] for row in await database.fetch(_NAMES, tenant_id, LIST_MAX)]


async def list_schedules(
    database: Database, tenant_id: int, *, name: str | None = None, after: str | None = None, limit: int = LIST_MAX
) -> list[ScheduleView]:
    """Schedules by name, those after one of them, or one of them; and how they stand."""
    rows = await database.fetch(_LIST, tenant_id, name, limit, after)
    fired = {row["schedule_id"]: row["last_slot_at"] for row in rows if row["last_slot_at"] is not None}
    last = {row["schedule_id"]: row for row in await database.fetch(_SLOTS, list(fired), 1, list(fired.values()))}
    return [_view(row, last.get(row["schedule_id"])) for row in rows]


async def list_slots(
    database: Database, tenant_id: int, name: str, *, limit: int = 20, at: datetime | None = None
) -> list[SlotView]:
    """The newest slots of a schedule, newest first."""
    row = await find_schedule(database, tenant_id, name)
    return [_slot(found) for found in await database.fetch(_SLOTS, [row.schedule_id], limit, [at])]


def _view(row: Any, last_slot: Any) -> ScheduleView:
    last = None if last_slot is None else _slot(last_slot)
    passed_over = json.loads(row["passed_over"] or "{}")
    facts = ScheduleFacts(
        at=row["now"],
        next_at=row["next_at"],
        paused_by=row["paused_by"],
        paused_reason=row["paused_reason"],
        trouble=row["trouble"],
        last_outcome=None if last is None else last.outcome,
        has_fired=last is not None,
        waiting=row["waiting"],
        passed_over=passed_over,
    )
    return ScheduleView(
        kind="flow" if row["kind"] == "f" else "action",
        when=row["cron"] if row["every_seconds"] is None else f"every {human(row['every_seconds'])}",
        tags=row["tags"] or [],
        input=wire.decode(row["input"]),
        upcoming=_upcoming(row),
        last=last,
        passed_over=passed_over,
        paused=row["paused_at"] is not None,
        at=row["now"],
        why=describe(facts),
        **{name: row[name] for name in _AS_STORED},
    )


_AS_STORED = (
    *("name", "target", "cron", "every_seconds", "timezone", "overlap", "missed", "max_waiting", "origin", "queue"),
    *("priority", "wants_time", "next_at", "waiting", "paused_by", "paused_reason", "paused_at", "trouble"),
    "created_at",
)


def _upcoming(row: Any) -> list[datetime]:
    """The next slots in the schedule's own zone; none while it is paused."""
    if row["next_at"] is None or row["paused_at"] is not None:
        return []
    timing, zone = timing_of(row["cron"], row["every_seconds"], row["timezone"]), zone_of(row["timezone"])
    later = islice(timing.slots_after(row["next_at"]), UPCOMING - 1)
    return [slot.astimezone(zone) for slot in (row["next_at"], *later)]


def _slot(row: Any) -> SlotView:
    return SlotView(
        slot=row["slot_at"],
        first=row["first_at"],
        slots=row["slots"],
        state=_STATES[row["state"]].value,
        cause=row["cause"],
        reason=row["reason"],
        by=row["actor"],
        decided_at=row["decided_at"],
        task_id=None if row["task_id"] is None else str(row["task_id"]),
        run_id=None if row["run_id"] is None else str(row["run_id"]),
        outcome=row["outcome"],
    )
