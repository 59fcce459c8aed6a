"""Operations on workers, actions, circuit breakers and launches."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

import msgspec

from holdfast.core.identity.access import Access
from holdfast.core.limits.breaker import CircuitState
from holdfast.core.values.bounds import is_id, required_reason
from holdfast.engine.launching import launch
from holdfast.engine.launching.launch import LaunchView
from holdfast.engine.limits.breakers import BreakerView, show_breaker, steer
from holdfast.engine.queries import workers
from holdfast.engine.queries.pages import valid_limit
from holdfast.engine.queries.workers import ActionView, WorkerView
from holdfast.engine.workers.drain import drain_worker
from holdfast.errors import Invalid, NotFound
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import Limit, next_of, page_of
from holdfast.operations.shared_types import ListNames, NameRequest

WORKERS_PAGE = 100
_PRESENT = ("active", "draining")


class ListWorkers(Request, frozen=True, kw_only=True):
    """`before` is the `next` of the previous page."""

    before: str | None = None
    limit: Limit = WORKERS_PAGE


class WorkerPage(msgspec.Struct, frozen=True, kw_only=True):
    workers: list[WorkerView]
    next: str | None


class OfWorker(Request, frozen=True, kw_only=True):
    worker_id: str


class SteerWorker(Request, frozen=True, kw_only=True):
    worker_id: str
    reason: str = ""


class ActionPage(msgspec.Struct, frozen=True, kw_only=True):
    actions: list[ActionView]
    next: str | None


class SteerBreaker(Request, frozen=True, kw_only=True):
    """Open it until it is closed by hand, close it, or try it now (`half_open`); opening needs a reason."""

    name: str
    to: Literal["open", "closed", "half_open"]
    reason: str = ""


@operation("worker.list", "GET /api/v1/workers", Access.VIEWER, commands=("worker list", "top"))
async def list_workers(context: OperationContext, request: ListWorkers) -> WorkerPage:
    """Lists workers, active and draining ones first."""
    before = None if request.before is None else _place(request.before)
    rows = await workers.list_workers(
        context.database, limit=valid_limit(request.limit), tenant_id=context.tenant_id, before=before
    )
    following = next_of(rows, request.limit, lambda row: f"{int(row.state in _PRESENT)}:{row.worker_id}")
    return WorkerPage(workers=rows, next=following)


def _place(text: str) -> tuple[bool, int]:
    present, _, number = text.partition(":")
    if present not in ("0", "1") or not is_id(number):
        raise Invalid(f"{text[:80]!r} is no `next` of a page.", code="invalid_cursor", advice="Begin at the start.")
    return present == "1", int(number)


@operation("worker.show", "GET /api/v1/workers/{worker_id}", Access.VIEWER)
async def show_worker(context: OperationContext, request: OfWorker) -> WorkerView:
    """Shows one worker and its running tasks."""
    return await workers.show_worker(context.database, _number(request.worker_id), tenant_id=context.tenant_id)


@operation("worker.drain", "POST /api/v1/workers/{worker_id}/drain", Access.OPERATOR)
async def drain(context: OperationContext, request: SteerWorker) -> WorkerView:
    """Asks a worker to finish its running tasks and claim no more."""
    return await drain_worker(
        context.database,
        _number(request.worker_id),
        tenant_id=context.tenant_id,
        actor=context.actor,
        reason=request.reason,
    )


def _number(worker_id: str) -> int:
    if not is_id(worker_id):
        raise NotFound(
            f"There is no worker {worker_id[:80]!r}.",
            code="worker_not_found",
            advice="Workers go by number, see `holdfast worker list`.",
        )
    return int(worker_id)


@operation("action.list", "GET /api/v1/actions", Access.VIEWER)
async def list_actions(context: OperationContext, request: ListNames) -> ActionPage:
    """Lists the actions that workers declared."""
    rows = await workers.list_actions(context.database, context.tenant_id)
    page, following = page_of(rows, lambda row: row.name, request.after, request.limit)
    return ActionPage(actions=page, next=following)


@operation("action.show", "GET /api/v1/actions/{name}", Access.VIEWER)
async def show_action(context: OperationContext, request: NameRequest) -> ActionView:
    """Shows one action and its whole retry policy."""
    if actions := await workers.list_actions(context.database, context.tenant_id, name=request.name):
        return actions[0]
    names = [row.name for row in await workers.list_actions(context.database, context.tenant_id)]
    near = get_close_matches(request.name, names, n=1)
    raise NotFound(
        f"No worker declared the action {request.name!r}.",
        code="action_not_found",
        advice=f"Did you mean {near[0]}?" if near else "See `holdfast action list`.",
    )


@operation("breaker.show", "GET /api/v1/actions/{name}/breaker", Access.VIEWER, commands=("action breaker",))
async def show_action_breaker(context: OperationContext, request: NameRequest) -> BreakerView:
    """Shows the circuit breaker of an action."""
    return await show_breaker(context.database, context.tenant_id, request.name)


@operation("breaker.steer", "POST /api/v1/actions/{name}/breaker", Access.OPERATOR, commands=("action breaker",))
async def steer_breaker(context: OperationContext, request: SteerBreaker) -> BreakerView:
    """Opens, closes or resets the circuit breaker of an action."""
    if request.to == "open":
        required_reason(request.reason)
    await show_breaker(context.database, context.tenant_id, request.name)
    to = CircuitState(request.to)
    return await steer(context.engine, context.tenant_id, request.name, to, actor=context.actor, reason=request.reason)


class ListLaunches(Request, frozen=True, kw_only=True):
    """The maximum number of launches."""

    limit: Limit = WORKERS_PAGE


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    launches: list[LaunchView]


@operation("launch.list", "GET /api/v1/launches", Access.VIEWER)
async def list_launches(context: OperationContext, request: ListLaunches) -> Launches:
    """Lists launches that have not ended, oldest first."""
    limit = valid_limit(request.limit)
    return Launches(launches=await launch.list_launches(context.database, context.tenant_id, limit=limit))


OPERATIONS = (
    list_launches,
    list_workers,
    show_worker,
    drain,
    list_actions,
    show_action,
    show_action_breaker,
    steer_breaker,
)
