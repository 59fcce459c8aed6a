"""The operation that submits many tasks of one action in one request: all of them, or none."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.client.declared_actions import declared_action
from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import KeyUse, Request, operation

BATCH_BYTES_MAX = 32 * 1024 * 1024


class SubmitTasks(Request, frozen=True, kw_only=True):
    """One task per input, at most 10000, of an action that a worker declared; the other fields apply to all of them."""

    action: str
    inputs: list[dict[str, Any]]
    queue: str | None = None
    delay: str | float | None = None
    priority: int | None = None
    tags: list[str] = msgspec.field(default_factory=list)


class SubmittedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The ids are in the order of the inputs."""

    task_ids: list[str]
    action: str
    queue: str
    state: str


@operation(
    "task.submit_many",
    "POST /api/v1/tasks/batch",
    Access.OPERATOR,
    status=201,
    commands=(),
    once=KeyUse.STORED,
    body_bytes_max=BATCH_BYTES_MAX,
    is_bulk=True,
)
async def submit_tasks(context: OperationContext, request: SubmitTasks) -> SubmittedTasks:
    """Submits many tasks of one action: all, or none if one is refused."""
    bounds.valid_batch(len(request.inputs))
    if context.once is not None:
        await context.once.look(context.database)
    engine, action = context.engine, await declared_action(context.engine, request.action)
    options: dict[str, Any] = {
        "queue": request.queue,
        "delay": request.delay,
        "priority": request.priority,
        "tags": tuple(request.tags) or None,
    }
    bound = action.options(**{name: value for name, value in options.items() if value is not None})
    # Names are stored in separate sessions, so this is done before the transaction opens.
    await context.client.make_ready(bound)
    queue = request.queue or action.queue
    async with context.database.transaction() as session:
        if context.once is not None:
            await context.once.begin(session)
        tasks = await context.client.enqueue_many(bound, request.inputs, connection=session)
        answer = SubmittedTasks(
            task_ids=[task.task_id for task in tasks], action=action.name, queue=queue, state="queued"
        )
        if context.once is not None:
            await context.once.keep(session, answer)
    if not request.delay:
        engine.notifier.notify(lanes=(await engine.catalog.lane_id(context.tenant_id, queue, action.name),))
    return answer


OPERATIONS = (submit_tasks,)
