"""Observe: read events in an order that can be resumed, losing nothing and repeating nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.store.database import Database
from holdfast.store.statements import sql

_READ_EVENTS = sql("read_events")
_EVENT_TAIL = sql("event_tail")

START = "0:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to one task. `cursor` resumes after the whole batch it came in."""

    cursor: str
    at: datetime
    kind: str
    task_id: str
    attempt: int
    detail: dict[str, Any] | None


async def event_tail(database: Database) -> str:
    """The cursor after everything that is settled by now."""
    return str(await database.fetchval(_EVENT_TAIL))


async def events_after(database: Database, tenant_id: int, cursor: str = START, *, limit: int = 500) -> list[Event]:
    """Events after `cursor`, oldest first. `limit` counts batches; one may hold many tasks."""
    xid, _, seq = cursor.partition(":")
    rows = await database.fetch(_READ_EVENTS, tenant_id, xid, int(seq or 0), limit)
    return [
        Event(
            cursor=f"{row['xid']}:{row['seq']}",
            at=row["at"],
            kind=row["kind"],
            task_id=str(task_id),
            attempt=attempt,
            detail=None if row["detail"] is None else json.loads(row["detail"]),
        )
        for row in rows
        for task_id, attempt in zip(row["task_ids"], row["attempts"], strict=True)
    ]
