"""Queries of schedules: when they fire next, the outcome of their slots, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any

from holdfast.codec import json_codec
from holdfast.codec.cron import timing_of, zone_of
from holdfast.core.schedules.slots import SLOT_CODES
from holdfast.core.schedules.summary import ScheduleFacts, describe
from holdfast.core.values.duration import human
from holdfast.engine.schedules.fire import ScheduleRow
from holdfast.errors import NotFound
from holdfast.store.database import Database
from holdfast.store.sql.schedules import schedules as schedules_sql

LIST_MAX = 1_000
UPCOMING = 5

_STATES = {code: state for state, code in SLOT_CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """One slot, or several consecutive slots with the same outcome, for display."""

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
    """One schedule for display. `upcoming` are its next slots, in its own time zone."""

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
    max_active: int | None = None


async def find_schedule(database: Database, tenant_id: int, name: str) -> ScheduleRow:
    """Return the schedule with that name; raise `NotFound` if it does not exist."""
    found = await schedules_sql.find_schedule(database, tenant_id, name)
    if found is None:
        raise await missing_schedule(database, tenant_id, name)
    return ScheduleRow(*found)


async def missing_schedule(database: Database, tenant_id: int, name: str) -> NotFound:
    """Build the error for a name that no schedule has."""
    names = await schedule_names(database, tenant_id)
    near = get_close_matches(name, names, n=1)
    advice = f"Did you mean {near[0]}?" if near else "See `holdfast schedule list`."
    return NotFound(f"There is no schedule {name!r}.", code="schedule_not_found", advice=advice)


async def schedule_names(database: Database, tenant_id: int) -> list[str]:
    """Return the names of the first thousand schedules."""
    return [row.name for row in await schedules_sql.schedule_names(database, tenant_id, LIST_MAX)]


async def list_schedules(
    database: Database, tenant_id: int, *, name: str | None = None, after: str | None = None, limit: int = LIST_MAX
) -> list[ScheduleView]:
    """Return schedules by name with their status: all, those after a name, or one."""
    rows = await schedules_sql.list_schedules(database, tenant_id, name, limit, after)
    fired = {row.schedule_id: row.last_slot_at for row in rows if row.last_slot_at is not None}
    last = {
        row.schedule_id: row for row in await schedules_sql.list_slots(database, list(fired), 1, list(fired.values()))
    }
    return [_view(row, last.get(row.schedule_id)) for row in rows]


async def list_slots(
    database: Database, tenant_id: int, name: str, *, limit: int = 20, at: datetime | None = None
) -> list[SlotView]:
    """Return the newest slots of a schedule, newest first."""
    row = await find_schedule(database, tenant_id, name)
    return [_slot(found) for found in await schedules_sql.list_slots(database, [row.schedule_id], limit, [at])]


def _view(row: schedules_sql.ListSchedulesRow, last_slot: schedules_sql.ListSlotsRow | None) -> ScheduleView:
    last = None if last_slot is None else _slot(last_slot)
    passed_over = json.loads(row.passed_over or "{}")
    facts = ScheduleFacts(
        at=row.now,
        next_at=row.next_at,
        paused_by=row.paused_by,
        paused_reason=row.paused_reason,
        trouble=row.trouble,
        last_outcome=None if last is None else last.outcome,
        has_fired=last is not None,
        waiting=row.waiting,
        passed_over=passed_over,
    )
    return ScheduleView(
        kind="flow" if row.kind == "f" else "action",
        when=row.cron or "" if row.every_seconds is None else f"every {human(row.every_seconds)}",
        tags=row.tags or [],
        input=json_codec.decode(row.input),
        upcoming=_upcoming(row),
        last=last,
        passed_over=passed_over,
        paused=row.paused_at is not None,
        at=row.now,
        why=describe(facts),
        **{name: value for name, value in row._asdict().items() if name in _AS_STORED},
    )


_AS_STORED = (
    *("name", "target", "cron", "every_seconds", "timezone", "overlap", "missed", "max_waiting", "origin", "queue"),
    *("priority", "wants_time", "next_at", "waiting", "paused_by", "paused_reason", "paused_at", "trouble"),
    *("created_at", "max_active"),
)


def _upcoming(row: schedules_sql.ListSchedulesRow) -> list[datetime]:
    """Return the next slots in the schedule's own time zone; none while it is paused."""
    if row.next_at is None or row.paused_at is not None:
        return []
    timing, zone = timing_of(row.cron, row.every_seconds, row.timezone), zone_of(row.timezone)
    later = islice(timing.slots_after(row.next_at), UPCOMING - 1)
    return [slot.astimezone(zone) for slot in (row.next_at, *later)]


def _slot(row: schedules_sql.ListSlotsRow) -> SlotView:
    return SlotView(
        slot=row.slot_at,
        first=row.first_at,
        slots=row.slots,
        state=_STATES[row.state].value,
        cause=row.cause,
        reason=row.reason,
        by=row.actor,
        decided_at=row.decided_at,
        task_id=None if row.task_id is None else str(row.task_id),
        run_id=None if row.run_id is None else str(row.run_id),
        outcome=row.outcome,
    )
