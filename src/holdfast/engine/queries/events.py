"""Read events in an order that can be resumed, without gaps or repetitions.

A cursor is `xid:seq:n`, the n-th task of one batch; `xid:seq` is after the whole batch. Events are ordered by when
their transactions began to write. An event is returned only when no transaction that could precede it is still open.
For one task, `order` gives the true order where transactions overlapped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core.values.bounds import no_run
from holdfast.errors import Invalid
from holdfast.store.database import Database
from holdfast.store.sql.queries import events as events_sql

START = "0:0"
PAGE = 500
PASSED_MAX = 5_000
"""How many batches of all tenants are read for one page, so that a reader that is far behind takes bounded steps."""
_WHOLE = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of a task or run, or another event (`task_id` is empty). `cursor` resumes after it."""

    cursor: str
    at: datetime
    kind: str
    task_id: str
    attempt: int
    detail: dict[str, Any] | None
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """A page of events; `cursor` resumes after it. `is_all`: there were no more."""

    events: list[Event]
    cursor: str
    is_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """A change of a run (`node_no` None), of one of its nodes, or of an item of a node."""

    cursor: str
    at: datetime
    kind: str
    task_id: str
    node_no: int | None
    item: int | None
    attempt: int
    detail: dict[str, Any] | None
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEventPage:
    """A page of events of a run; `cursor` resumes after it. `is_end`: no more events will follow."""

    events: list[NodeEvent]
    cursor: str
    is_all: bool
    is_end: bool
    tail: str


def cursor_of(text: str) -> tuple[str, int, int]:
    """Parse a cursor; raise `Invalid` if it is none."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in parts):
        raise Invalid(f"{text[:80]!r} is not a cursor.", code="invalid_cursor", advice=f"Begin with {START}.")
    xid, seq, *place = parts
    return xid, int(seq), int(place[0]) if place else _WHOLE


def position(cursor: str) -> tuple[int, int, int]:
    """Return the position of a cursor, to compare it with others."""
    xid, seq, place = cursor_of(cursor)
    return int(xid), seq, place


async def event_tail(database: Database) -> str:
    """Return the cursor after all events that are settled now."""
    return str(await events_sql.event_tail(database))


async def events_after(database: Database, tenant_id: int, cursor: str = START, *, limit: int = PAGE) -> EventPage:
    """Return the events after `cursor`, oldest first; those without a task have an empty `task_id`. `limit` counts
    batches.

    A reader continues with the page's cursor, which also skips batches that have no events for it: those of other
    tenants.
    """
    xid, seq, place = cursor_of(cursor)
    # One more, because the first row may be the batch that the cursor points into.
    rows = await events_sql.read_events(database, tenant_id, xid, seq, limit + 1, PASSED_MAX)
    read_to, is_all = f"{rows[-1].xid}:{rows[-1].seq}", rows[-1].is_end
    found = [
        Event(
            cursor=f"{row.xid}:{row.seq}:{number}",
            at=row.at,
            kind=row.kind,
            task_id=str(task_id or ""),
            attempt=attempt,
            detail=_detail(row),
            order=row.seq,
        )
        for row in rows
        if row.kind is not None
        for number, (task_id, attempt) in enumerate(
            zip(row.task_ids or (0,), row.attempts or (0,), strict=True), start=1
        )
        if (row.xid, row.seq) != (xid, seq) or number > place
    ]
    return EventPage(events=found, cursor=max(cursor, read_to, key=position), is_all=is_all)


async def run_events_after(
    database: Database, tenant_id: int, run_id: int, cursor: str = START, *, ended_by: str = "", limit: int = PAGE
) -> RunEventPage:
    """Return the events of one run after `cursor`, from the next `limit` batches of all events; `NotFound` if it does
    not exist.

    `ended_by` is the `tail` of the first page on which the run had ended. Once all transactions before it are settled,
    no event of this generation can follow.
    """
    xid, seq, place = cursor_of(cursor)
    rows = await events_sql.read_run_events(database, run_id, tenant_id, xid, seq, limit + 1, PASSED_MAX)
    if not rows:
        raise no_run(run_id)
    first = rows[0]
    is_all = first.is_end
    is_over = first.state != "o"
    tail = (ended_by or first.tail) if is_over else ""
    return RunEventPage(
        events=_run_events(rows, run_id, (xid, seq, place)),
        cursor=max(cursor, f"{first.last_xid}:{first.last_seq}", key=position),
        is_all=is_all,
        is_end=is_over and is_all and _is_settled(tail, first),
        tail=tail,
    )


def _is_settled(tail: str, row: events_sql.ReadRunEventsRow) -> bool:
    """Return whether all transactions that began before `tail` have ended: by their number, or because of a crash,
    after which the server counts from a lower number."""
    return int(row.horizon) >= int(tail) or int(row.tail) < int(tail)


def _run_events(
    rows: Sequence[events_sql.ReadRunEventsRow], run_id: int, after: tuple[str, int, int]
) -> list[NodeEvent]:
    xid, seq, place = after
    return [
        NodeEvent(
            cursor=f"{row.xid}:{row.seq}:{row.number}",
            at=row.at,
            kind=row.kind,
            task_id=str(row.task_id),
            node_no=None if row.task_id == run_id else row.node_no,
            item=row.item,
            attempt=row.attempt,
            detail=_detail(row),
            order=row.seq,
        )
        for row in rows
        if row.xid is not None and ((row.xid, row.seq) != (xid, seq) or row.number > place)
    ]


def _detail(row: events_sql.ReadEventsRow | events_sql.ReadRunEventsRow) -> dict[str, Any] | None:
    return None if row.detail is None else json.loads(row.detail)
