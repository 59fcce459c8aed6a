"""One task in full, with its attempts and their notes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.explain.dead_letter import letter_sentence
from holdfast.core.flows.nodes import Node
from holdfast.core.tasks.path import execution_path
from holdfast.engine.effects.gate import EffectView, list_effects
from holdfast.engine.lifecycle.runs.inputs import node_input
from holdfast.engine.queries.explain_task import read_letters
from holdfast.engine.queries.pages import LIMIT_MAX
from holdfast.errors import NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.session import first
from holdfast.store.sql.queries import events as events_sql
from holdfast.store.sql.queries import tasks as tasks_sql
from holdfast.store.sql.tasks import lanes as lanes_sql

COPIES_MAX = 20
"""How many copies of a task are listed: the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One attempt; a running attempt has no end."""

    attempt: int
    state: str
    worker: str | None
    dispatched_at: datetime | None
    """When a worker was launched for it; with pulling workers, when the attempt began."""
    started_at: datetime | None
    ended_at: datetime | None
    code: str | None
    type: str | None
    message: str | None
    traceback: str | None
    decision: str | None
    reason: str | None
    rule: str | None
    sentence: str | None
    retry_at: datetime | None
    failure_class: str | None
    """The class of the failure, also where a budget or a setting ended the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One task in full. A node's input is what its bindings give now, `null` until its upstreams have ended. The dead
    letter is the newest unresolved one, preferably one that is being retried; `dead_letter` describes its status.
    `path` leads from the flow down to the attempt. `copies` are the newest of its copies, 20 at most."""

    task_id: str
    action: str
    queue: str
    state: str
    attempt: int
    max_attempts: int
    max_losses: int
    generation: int
    priority: int
    tags: list[str]
    key: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    due_at: datetime | None
    next_retry_at: datetime | None
    lease_expires_at: datetime | None
    cancel_at: datetime | None
    canceled_by: str | None
    cancel_reason: str | None
    original_task_id: str | None
    copies: list[str]
    input: msgspec.Raw
    output: msgspec.Raw
    attempts: list[AttemptView]
    effects: list[EffectView]
    run_id: str | None = None
    node: str | None = None
    item: int | None = None
    path: list[str] = field(default_factory=list)
    dead_letter_id: str | None = None
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNote:
    """A note of a running attempt: a log line or its progress. `seq` orders the notes of an attempt."""

    attempt: int
    seq: int
    at: datetime
    kind: str
    detail: dict[str, Any]


async def show_task(database: Database, catalog: Catalog, tenant_id: int, task_id: int) -> TaskView:
    """Return one task with all its attempts; raise `NotFound` if it does not exist."""
    row = await tasks_sql.show_task(database, task_id, tenant_id)
    if row is None:
        raise NotFound(f"There is no task {task_id}.", code="task_not_found")
    flow, node, given = await _node_of(database, catalog, row)
    lane = first(await lanes_sql.read_lanes(database, [row.lane_id]))
    attempts = [AttemptView(**one._asdict()) for one in await tasks_sql.show_attempts(database, task_id, tenant_id)]
    letter = next(iter(await read_letters(database, tenant_id, task_id)), None)
    is_retrying, is_failed = row.is_retrying, row.state == "failed"
    return TaskView(
        task_id=str(task_id),
        action=lane.action if lane is not None else node.action if node is not None else "",
        queue=lane.queue if lane is not None else "",
        state=row.state,
        attempt=row.attempt,
        max_attempts=(row.max_retries or 0) + 1,
        max_losses=row.max_losses or 0,
        generation=row.generation or 1,
        priority=row.priority,
        tags=row.tags or [],
        key=row.key,
        created_at=row.created_at,
        started_at=row.started_at or next((one.started_at for one in reversed(attempts)), None),
        ended_at=row.ended_at,
        due_at=None if is_retrying else row.due_at,
        next_retry_at=row.due_at if is_retrying else None,
        lease_expires_at=row.lease_expires_at,
        cancel_at=row.cancel_at,
        canceled_by=row.actor or None,
        cancel_reason=(row.reason or None) if row.state != "failed" else None,
        original_task_id=None if row.original_task_id is None else str(row.original_task_id),
        copies=[one.task_id for one in await tasks_sql.task_copies(database, task_id, tenant_id, COPIES_MAX)],
        input=msgspec.Raw(given if row.input is None else row.input),
        output=json_codec.NULL if row.output is None else msgspec.Raw(row.output),
        attempts=attempts,
        effects=await list_effects(database, tenant_id, task_ids=[task_id]),
        run_id=None if row.run_id is None else str(row.run_id),
        node=None if node is None else node.name,
        item=row.item_no,
        path=execution_path(
            flow=flow,
            run_id=None if row.run_id is None else str(row.run_id),
            node=None if node is None else node.name,
            item=row.item_no,
            task_id=str(task_id),
            attempt=row.attempt,
        ),
        dead_letter_id=None if letter is None else str(letter.dead_letter_id),
        dead_letter=None if letter is None else letter_sentence(letter, at=row.at, is_failed=is_failed),
    )


async def _node_of(
    database: Database, catalog: Catalog, row: tasks_sql.ShowTaskRow
) -> tuple[str | None, Node | None, bytes]:
    """Return the flow and node of a task (or of an item), and its input as its bindings give it now."""
    if row.run_id is None:
        return None, None, b"null"
    async with database.session() as session:
        await catalog.flows.learn([row.snapshot_id], session)
        plan = catalog.flows.snapshot(row.snapshot_id).plan
        node = plan.nodes[row.node_no]
        # The input of an item that a new expansion replaced cannot be rebuilt: the outputs it came from are deleted.
        asked = (row.run_id, row.node_no, row.item_no)
        given = None if row.is_past else await node_input(session, catalog, *asked)
        return plan.name, node, msgspec.json.encode(given)


async def read_notes(
    database: Database,
    tenant_id: int,
    task_id: int,
    *,
    attempt: int | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int = LIMIT_MAX,
) -> list[AttemptNote]:
    """Return a page of the notes of a task's attempts, oldest first; the next page begins `after` the last (attempt,
    seq)."""
    rows = await events_sql.read_notes(database, task_id, tenant_id, limit, attempt, *after)
    return [AttemptNote(attempt=r.attempt, seq=r.seq, at=r.at, kind=r.kind, detail=json.loads(r.detail)) for r in rows]
