"""Look: one task in full with what its attempts said, and workers and actions, as lists and one by one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from holdfast import wire
from holdfast.core.explain_letter import letter_sentence
from holdfast.core.nodes import Node
from holdfast.dispatcher.effects import EffectView, list_effects
from holdfast.dispatcher.explain import read_letters
from holdfast.dispatcher.inputs import node_input
from holdfast.dispatcher.pages import LIMIT_MAX
from holdfast.dispatcher.probe import ProbeView
from holdfast.errors import NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.statements import sql

_SHOW_TASK = sql("show_task")
_SHOW_ATTEMPTS = sql("show_attempts")
_READ_LANES = sql("read_lanes")
_READ_NOTES = sql("read_notes")
_LIST_WORKERS = sql("list_workers")
_FIND_WORKER = sql("find_worker")
_SHOW_WORKER = sql("show_worker")
_LIST_ACTIONS = sql("list_actions")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One attempt; the running one has no end."""

    attempt: int
    state: str
    worker: str | None
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
    """What the failure is called, also where a budget or a switch ended the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One task in full. A node's input is what its bindings give now, `null` while its upstreams are not over. The dead
    letter is the newest that is not resolved, one that is being retried first; `dead_letter` is how it stands."""

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
    input: msgspec.Raw
    output: msgspec.Raw
    attempts: list[AttemptView]
    effects: list[EffectView]
    run_id: str | None = None
    node: str | None = None
    item: int | None = None
    dead_letter_id: str | None = None
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What an attempt said while it ran: a log line or its progress. `seq` orders the notes of an attempt."""

    attempt: int
    seq: int
    at: datetime
    kind: str
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTask:
    """A task in a worker's hands."""

    task_id: str
    action: str
    queue: str
    attempt: int
    started_at: datetime
    lease_expires_at: datetime
    is_canceling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker incarnation. `queues` None means every queue; `tasks` only where one worker is shown."""

    worker_id: str
    name: str
    version: str
    state: str
    slots: int
    running: int
    queues: list[str] | None
    actions: list[str]
    started_at: datetime
    beat_at: datetime
    beat_age_seconds: float
    ended_at: datetime | None
    health: dict[str, Any]
    probe: ProbeView | None = None
    """What its URL answered, where it offers one."""
    tasks: list[HeldTask] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """What workers last declared about an action, and how many are live to run it."""

    name: str
    queue: str
    version: str
    seen_at: datetime
    max_retries: int
    max_attempts: int
    max_losses: int
    timeout_seconds: float | None
    workers: int
    policy: dict[str, Any]
    breaker: str | None = None
    """Closed, open or half-open; None where the action declares none."""


async def show_task(database: Database, catalog: Catalog, tenant_id: int, task_id: int) -> TaskView:
    """One task with all its attempts, or `NotFound`."""
    row = await database.fetchrow(_SHOW_TASK, task_id, tenant_id)
    if row is None:
        raise NotFound(f"There is no task {task_id}.", code="task_not_found")
    node, given = await _node_of(database, catalog, row)
    lane = await database.fetchrow(_READ_LANES, [row["lane_id"]])
    attempts = [AttemptView(**dict(one)) for one in await database.fetch(_SHOW_ATTEMPTS, task_id, tenant_id)]
    letter = next(iter(await read_letters(database, tenant_id, task_id)), None)
    is_retrying, is_failed = row["is_retrying"], row["state"] == "failed"
    return TaskView(
        task_id=str(task_id),
        action=lane["action"] if lane is not None else node.action if node is not None else "",
        queue=lane["queue"] if lane is not None else "",
        state=row["state"],
        attempt=row["attempt"],
        max_attempts=(row["max_retries"] or 0) + 1,
        max_losses=row["max_losses"] or 0,
        generation=row["generation"] or 1,
        priority=row["priority"],
        tags=row["tags"] or [],
        key=row["key"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        due_at=None if is_retrying else row["due_at"],
        next_retry_at=row["due_at"] if is_retrying else None,
        lease_expires_at=row["lease_expires_at"],
        cancel_at=row["cancel_at"],
        canceled_by=row["actor"] or None,
        cancel_reason=(row["reason"] or None) if row["state"] != "failed" else None,
        original_task_id=None if row["original_task_id"] is None else str(row["original_task_id"]),
        input=msgspec.Raw(given if row["input"] is None else row["input"]),
        output=wire.NULL if row["output"] is None else msgspec.Raw(row["output"]),
        attempts=attempts,
        effects=await list_effects(database, tenant_id, task_ids=[task_id]),
        run_id=None if row["run_id"] is None else str(row["run_id"]),
        node=None if node is None else node.name,
        item=row["item_no"],
        dead_letter_id=None if letter is None else str(letter.dead_letter_id),
        dead_letter=None if letter is None else letter_sentence(letter, at=row["at"], is_failed=is_failed),
    )


async def _node_of(database: Database, catalog: Catalog, row: Any) -> tuple[Node | None, bytes]:
    """The node that a task is, or is an item of, and its input as its bindings give it."""
    if row["run_id"] is None:
        return None, b"null"
    async with database.session() as session:
        await catalog.flows.learn([row["snapshot_id"]], session)
        node = catalog.flows.snapshot(row["snapshot_id"]).plan.nodes[row["node_no"]]
        # What an item was given that its node has replaced since is gone with the outputs it came from.
        asked = (row["run_id"], row["node_no"], row["item_no"])
        given = None if row["is_past"] else await node_input(session, catalog, *asked)
        return node, msgspec.json.encode(given)


async def read_notes(
    database: Database,
    tenant_id: int,
    task_id: int,
    *,
    attempt: int | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int = LIMIT_MAX,
) -> list[Note]:
    """A page of what the attempts of a task said, oldest first; the next one begins `after` the last place."""
    rows = await database.fetch(_READ_NOTES, task_id, tenant_id, limit, attempt, *after)
    return [
        Note(attempt=r["attempt"], seq=r["seq"], at=r["at"], kind=r["kind"], detail=json.loads(r["detail"]))
        for r in rows
    ]


async def list_workers(
    database: Database,
    *,
    limit: int = 100,
    tenant_id: int | None = None,
    before: tuple[bool, int] | None = None,
) -> list[WorkerView]:
    """A page of workers of one tenant or of all, present ones first.

    The next one begins `before` whether the last was present, and its id.
    """
    is_present, number = before or (None, None)
    return [_worker_view(row) for row in await database.fetch(_LIST_WORKERS, limit, tenant_id, number, is_present)]


async def show_worker(database: Database, worker_id: int, *, tenant_id: int | None = None) -> WorkerView:
    """One worker with what it holds, or `NotFound`, also where it is not of the tenant named."""
    row = await database.fetchrow(_FIND_WORKER, worker_id, tenant_id)
    if row is None:
        raise NotFound(
            f"There is no worker {worker_id}.", code="worker_not_found", advice="See `holdfast worker list`."
        )
    held = await database.fetch(_SHOW_WORKER, worker_id, LIMIT_MAX)
    return _worker_view(row, [HeldTask(**dict(one)) for one in held])


async def list_actions(database: Database, tenant_id: int, *, name: str | None = None) -> list[ActionView]:
    """Every action (or one) that some worker declared."""
    rows = await database.fetch(_LIST_ACTIONS, tenant_id, name)
    return [ActionView(**{**dict(row), "policy": json.loads(row["policy"])}) for row in rows]


def _worker_view(row: Any, tasks: list[HeldTask] | None = None) -> WorkerView:
    found = dict(row)
    found |= {"worker_id": str(found["worker_id"]), "health": json.loads(found["health"])}
    url, *probed = (found.pop(name) for name in ("probe_url", "checked_at", "is_healthy", "failures", "detail"))
    return WorkerView(**found, probe=None if url is None else _probe_view(url, *probed), tasks=tasks)


def _probe_view(
    url: str, checked_at: datetime | None, is_healthy: bool | None, failures: int | None, detail: str | None
) -> ProbeView:
    return ProbeView(
        url=url, checked_at=checked_at, is_healthy=is_healthy, failures=failures or 0, detail=detail or "not asked yet"
    )
