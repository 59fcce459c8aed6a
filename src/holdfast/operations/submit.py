"""Operations that submit one task of an action, or a copy of a task."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authoring.action import Action
from holdfast.client.client import Client
from holdfast.client.declared_actions import declared_action
from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks import copy
from holdfast.engine.queries.status import NEW, task_state
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import KeyUse, Request, operation

SUBMIT_BYTES_MAX = 257 * 1024 * 1024


class SubmitTask(Request, frozen=True, kw_only=True):
    """One task of an action that a worker declared. `delay` is seconds, or text as `5m`."""

    action: str
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    queue: str | None = None
    key: str | None = None
    delay: str | float | None = None
    priority: int | None = None
    tags: list[str] = msgspec.field(default_factory=list)


class CopyTask(Request, frozen=True, kw_only=True):
    """A copy of a task. Fields given here replace those of the original; `input` is merged into its input."""

    task_id: str
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    queue: str | None = None
    key: str | None = None
    delay: str | float | None = None
    priority: int | None = None
    tags: list[str] = msgspec.field(default_factory=list)


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The task and its state; with a key it may have been submitted before."""

    task_id: str
    action: str
    queue: str
    state: str


@operation(
    "task.submit", "POST /api/v1/tasks", Access.OPERATOR, status=201, once=KeyUse.OWN, body_bytes_max=SUBMIT_BYTES_MAX
)
async def submit_task(context: OperationContext, request: SubmitTask) -> Submitted:
    """Submits one task."""
    return await submit_action(context.client, await declared_action(context.engine, request.action), request)


async def submit_action(client: Client, action: Action[..., Any], request: SubmitTask) -> Submitted:
    """Submit one task of an action that is known from code or from a worker's declaration."""
    requested = {"queue": request.queue, "key": request.key, "delay": request.delay, "priority": request.priority}
    options: dict[str, Any] = {name: value for name, value in requested.items() if value is not None}
    task = await client.submit(action.options(**options, tags=tuple(request.tags)), request.input)
    state = await _state_of(client.engine, int(task.task_id), request.key)
    return Submitted(task_id=task.task_id, action=action.name, queue=request.queue or action.queue, state=state)


@operation(
    "task.copy",
    "POST /api/v1/tasks/{task_id}/copy",
    Access.OPERATOR,
    status=201,
    once=KeyUse.OWN,
    body_bytes_max=SUBMIT_BYTES_MAX,
    commands=("task submit",),
)
async def copy_task(context: OperationContext, request: CopyTask) -> Submitted:
    """Submits a copy of a task, linked to it."""
    options = copy.CopyOptions(
        queue=None if request.queue is None else bounds.valid_queue(request.queue),
        key=None if request.key is None else bounds.valid_key(request.key),
        delay_seconds=0.0 if request.delay is None else bounds.valid_delay(request.delay),
        priority=None if request.priority is None else bounds.valid_priority(request.priority),
        tags=bounds.valid_tags(request.tags),
    )
    number = bounds.task_number(request.task_id)
    accepted, lane = await copy.copy_task(context.engine, context.tenant_id, number, request.input, options)
    [task_id] = accepted.task_ids
    state = await _state_of(context.engine, task_id, request.key)
    return Submitted(task_id=str(task_id), action=lane.action, queue=lane.queue, state=state)


async def _state_of(engine: Engine, task_id: int, key: str | None) -> str:
    """Return the task's state. With a key, it may have been submitted before."""
    return NEW if key is None else await task_state(engine.database, engine.tenant_id, task_id)
