"""Operations on tasks: list, show, explain, wait for, read logs, retry and cancel."""

from __future__ import annotations

import msgspec

from holdfast.codec import json_codec
from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.dead_letters.requeue import Requeued
from holdfast.engine.queries import task_detail
from holdfast.engine.queries import tasks as listing
from holdfast.engine.queries.explain_run import why
from holdfast.engine.queries.pages import valid_limit
from holdfast.engine.queries.task_detail import AttemptNote, TaskView
from holdfast.engine.queries.tasks import TaskCursor, TaskRow
from holdfast.engine.use_cases import tasks as task_use_cases
from holdfast.errors import Invalid, WaitTimeout
from holdfast.operations.context import OperationContext
from holdfast.operations.explanation import ExplanationView, why_of
from holdfast.operations.operation import KeyUse, Request, operation
from holdfast.operations.paging import PAGE, Limit, rows_of, words
from holdfast.operations.submit import copy_task, submit_task

WAITING = "waiting"
WAIT_SECONDS_MIN, WAIT_SECONDS_MAX = 0.1, 20.0


class OfTask(Request, frozen=True, kw_only=True):
    """A task."""

    task_id: str


class SteerTask(Request, frozen=True, kw_only=True):
    """A task, and the reason for the change."""

    task_id: str
    reason: str = ""


class ListTasks(Request, frozen=True, kw_only=True):
    """Filters; `state` may be repeated. `since` is a time, or a duration before now; `before` is the last `next`."""

    state: list[str] = msgspec.field(default_factory=list)
    queue: str | None = None
    action: str | None = None
    tag: str | None = None
    since: str | None = None
    before: str | None = None
    limit: Limit = PAGE


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    tasks: list[TaskRow]
    next: str | None


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that will run."""

    task_id: str
    attempt: int
    status: str


class TaskStateView(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    state: str


class AwaitTask(Request, frozen=True, kw_only=True):
    """A task, and how long to wait for its end: at most 20 seconds, then repeat the request."""

    task_id: str
    wait_seconds: float = 0.0


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task failed, and what was decided."""

    code: str
    type: str | None
    message: str | None
    sentence: str | None


class TaskEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended; `waiting` if it has not."""

    task_id: str
    state: str
    output: msgspec.Raw = msgspec.field(default_factory=lambda: json_codec.NULL)
    error: TaskFailure | None = None


class ReadLogs(Request, frozen=True, kw_only=True):
    """A task, optionally one attempt, and a position in its log: the `next` of the previous page."""

    task_id: str
    attempt: int | None = None
    after: str | None = None
    limit: Limit = 1_000


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """Notes of attempts; `next` is the position after the last one, also at the end of the log."""

    state: str
    notes: list[AttemptNote]
    next: str | None
    is_all: bool


@operation("task.list", "GET /api/v1/tasks", Access.VIEWER)
async def list_tasks(context: OperationContext, request: ListTasks) -> TaskPage:
    """Lists tasks, newest first, in pages."""
    rows, following = await listing.task_page(
        context.database,
        context.tenant_id,
        states=words(request.state),
        queue=request.queue,
        action=request.action,
        tag=request.tag,
        since=request.since,
        before=None if request.before is None else TaskCursor.of(request.before),
        limit=rows_of(request.limit),
    )
    return TaskPage(tasks=rows, next=None if following is None else str(following))


@operation("task.show", "GET /api/v1/tasks/{task_id}", Access.VIEWER)
async def show_task(context: OperationContext, request: OfTask) -> TaskView:
    """Shows one task in full."""
    number = bounds.task_number(request.task_id)
    return await task_detail.show_task(context.database, context.engine.catalog, context.tenant_id, number)


@operation("task.why", "GET /api/v1/tasks/{task_id}/why", Access.VIEWER)
async def why_task(context: OperationContext, request: OfTask) -> ExplanationView:
    """Explains why a task is in its state."""
    return why_of(await context.client.why(request.task_id), task_id=request.task_id)


@operation("task.retry", "POST /api/v1/tasks/{task_id}/retry", Access.OPERATOR, status=202, once=KeyUse.STORED)
async def retry_task(context: OperationContext, request: SteerTask) -> Retried:
    """Runs a failed task again: a waiting retry now, or a task with retries left as a new generation."""

    def answer(done: Requeued) -> Retried:
        return Retried(task_id=str(done.task_id), attempt=done.attempt, status="queued")

    done = await task_use_cases.retry_task(
        context.engine,
        bounds.task_number(request.task_id),
        actor=context.actor,
        reason=request.reason,
        once=context.once,
        answer=answer,
    )
    return answer(done)


@operation("task.cancel", "POST /api/v1/tasks/{task_id}/cancel", Access.OPERATOR, status=202)
async def cancel_task(context: OperationContext, request: SteerTask) -> TaskStateView:
    """Cancels a task: at once if it waits, else by asking it to stop."""
    number = bounds.task_number(request.task_id)
    state = await task_use_cases.cancel_task(context.engine, number, actor=context.actor, reason=request.reason)
    return TaskStateView(task_id=str(number), state=state)


@operation(
    "task.ending",
    "GET /api/v1/tasks/{task_id}/ending",
    Access.VIEWER,
    commands=("task wait", "task watch"),
    in_vain=lambda request: TaskEnding(task_id=request.task_id, state=WAITING),
)
async def await_task(context: OperationContext, request: AwaitTask) -> TaskEnding:
    """Waits for the end of a task, and returns how it ended."""
    try:
        ending = await context.client.ending(request.task_id, timeout=bounded_wait(request.wait_seconds))
    except WaitTimeout:
        return TaskEnding(task_id=request.task_id, state=WAITING)
    error = None
    if ending.code is not None:
        error = TaskFailure(code=ending.code, type=ending.type, message=ending.message, sentence=ending.sentence)
    output = json_codec.NULL if ending.output is None else msgspec.Raw(ending.output)
    return TaskEnding(task_id=request.task_id, state=ending.state, output=output, error=error)


@operation("task.logs", "GET /api/v1/tasks/{task_id}/logs", Access.VIEWER)
async def read_logs(context: OperationContext, request: ReadLogs) -> Logs:
    """Reads the log lines and the progress of a task's attempts."""
    number = bounds.task_number(request.task_id)
    state = (await why(context.database, context.engine.catalog, context.tenant_id, number)).state
    after = (0, 0) if request.after is None else _log_position(request.after)
    notes = await task_detail.read_notes(
        context.database,
        context.tenant_id,
        number,
        attempt=request.attempt,
        after=after,
        limit=valid_limit(request.limit),
    )
    following = f"{notes[-1].attempt}:{notes[-1].seq}" if notes else request.after
    return Logs(state=state, notes=notes, next=following, is_all=len(notes) < request.limit)


def bounded_wait(seconds: float) -> float:
    """Return how long one request may wait: long enough to query, but not so long that connections pile up."""
    return min(max(WAIT_SECONDS_MIN, seconds), WAIT_SECONDS_MAX)


def _log_position(text: str) -> tuple[int, int]:
    attempt, _, seq = text.partition(":")
    if not (attempt.isascii() and attempt.isdigit() and seq.isascii() and seq.isdigit() and len(text) <= 28):
        raise Invalid(f"{text[:80]!r} is not a position in a log.", code="invalid_cursor", advice="Begin at the start.")
    return int(attempt), int(seq)


OPERATIONS = (
    list_tasks,
    submit_task,
    copy_task,
    show_task,
    why_task,
    retry_task,
    cancel_task,
    await_task,
    read_logs,
)
