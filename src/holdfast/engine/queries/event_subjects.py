"""The subject of an event beyond its task: the queue, the action, and the run of the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine.queries.events import Event
from holdfast.store.database import Database
from holdfast.store.sql.webhooks import webhooks as webhooks_sql


@dataclass(frozen=True, slots=True)
class EventContext:
    """The queue, action and run of an event. For a run, `action` is its flow. A field is None if it is unknown or not
    applicable."""

    queue: str | None = None
    action: str | None = None
    run_id: str | None = None


async def contexts_of(database: Database, events: Sequence[Event]) -> list[EventContext]:
    """Return the subject of each event; for an event without a task, the names in its detail."""
    task_ids = sorted({int(event.task_id) for event in events if event.task_id})
    rows = await webhooks_sql.event_places(database, task_ids) if task_ids else []
    known = {str(row.task_id): EventContext(row.queue, row.action, _text(row.run_id)) for row in rows}
    return [
        known.get(event.task_id, EventContext()) if event.task_id else _named(event.detail or {}) for event in events
    ]


def _named(detail: dict[str, Any]) -> EventContext:
    return EventContext(_word(detail.get("queue")), _word(detail.get("action")))


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
