"""Copy a plain task: enqueue its input again, unchanged or with changes, linked to the original.

A copy is new work with its own id, attempts and effects. To run the same task again, retry or re-drive it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.codec import json_codec
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks.enqueue import AcceptedBatch, EnqueueOrder, enqueue, intern
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import Lane
from holdfast.store.sql.queries import explain as explain_sql
from holdfast.store.sql.tasks import enqueue as enqueue_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """Options of a copy. Queue, priority and tags default to those of the original; key and delay are not copied."""

    queue: str | None = None
    key: str | None = None
    delay_seconds: float = 0.0
    priority: int | None = None
    tags: tuple[str, ...] = ()


async def copy_task(
    engine: Engine, tenant_id: int, task_id: int, input_changes: Mapping[str, Any], options: CopyOptions
) -> tuple[AcceptedBatch, Lane]:
    """Enqueue a copy of a task; `input_changes` replaces values of its input. Return the new task and its lane.

    Raise `NotFound` if the task does not exist, and `Conflict` if it is a node of a run.
    """
    row = await enqueue_sql.read_task_to_copy(engine.database, task_id, tenant_id)
    if row is None:
        raise await _copy_error(engine, tenant_id, task_id)
    await engine.catalog.learn([row.lane_id], [row.policy_id])
    lane = engine.catalog.lane(row.lane_id)
    order = EnqueueOrder(
        tenant_id=tenant_id,
        queue=options.queue or lane.queue,
        action=lane.action,
        policy=engine.catalog.policy(row.policy_id),
        priority=row.priority if options.priority is None else options.priority,
        delay_seconds=options.delay_seconds,
        tags=options.tags or tuple(row.tags or ()),
        original_task_id=task_id,
    )
    bytes_max = engine.settings.limits.input_bytes_max
    encoded = json_codec.encode({**json_codec.decode(row.input), **input_changes}, bytes_max=bytes_max, what="input")
    keys = None if options.key is None else [options.key]
    accepted = await enqueue(engine, await intern(engine.catalog, order), [encoded], keys=keys)
    await engine.catalog.learn([accepted.lane_id], ())
    return accepted, engine.catalog.lane(accepted.lane_id)


async def _copy_error(engine: Engine, tenant_id: int, task_id: int) -> NotFound | Conflict:
    location = await explain_sql.locate_task(engine.database, task_id, tenant_id)
    if location is None:
        return NotFound(f"There is no task {task_id}.", code="task_not_found")
    return Conflict(
        f"Task {task_id} belongs to run {location.run_id} and cannot be copied alone.",
        code="not_copyable",
        advice=f"Copy the run: holdfast run start --clone {location.run_id}",
    )
