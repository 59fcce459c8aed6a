"""Operations on queues, their limits, and the quotas on retries."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.identity.access import Access
from holdfast.core.limits.quota import Quota
from holdfast.core.values import bounds
from holdfast.engine.limits import queues
from holdfast.engine.limits.queues import QueueView
from holdfast.engine.limits.quotas import QuotaView, change_quota, list_quotas
from holdfast.errors import Invalid
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import page_of
from holdfast.operations.quota_text import changed_quota
from holdfast.operations.shared_types import Empty, ListNames, NameAndReason, Paused


class ListQueues(ListNames, frozen=True, kw_only=True):
    """`history=false` omits the counts of history."""

    history: bool = True


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueView]
    next: str | None


class OfQueue(Request, frozen=True, kw_only=True):
    """A queue."""

    name: str


class LimitQueue(Request, frozen=True, kw_only=True):
    """Limits to set; null removes one, omitted ones are unchanged. `retries` is as `100/1m`, `retry_share` as `20%`."""

    name: str
    running: int | UnsetType | None = UNSET
    per_second: float | UnsetType | None = UNSET
    retries: str | UnsetType | None = UNSET
    retry_share: str | UnsetType | None = UNSET
    reason: str = ""


class LimitRetries(Request, frozen=True, kw_only=True):
    """The quota on the retries of all queues together. Null removes a part; omitted ones are unchanged."""

    retries: str | UnsetType | None = UNSET
    retry_share: str | UnsetType | None = UNSET
    reason: str = ""


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    quotas: list[QuotaView]


class QueueNames(msgspec.Struct, frozen=True, kw_only=True):
    names: list[str]


@operation("queue.list", "GET /api/v1/queues", Access.VIEWER, commands=("queue list", "top"))
async def list_queues(context: OperationContext, request: ListQueues) -> QueuePage:
    """Lists queues with their counts."""
    rows = await queues.list_queues(context.database, context.tenant_id, with_history=request.history)
    page, following = page_of(rows, lambda row: row.name, request.after, request.limit)
    return QueuePage(queues=page, next=following)


@operation("queue.show", "GET /api/v1/queues/{name}", Access.VIEWER)
async def show_queue(context: OperationContext, request: OfQueue) -> QueueView:
    """Shows one queue with its counts and limits."""
    await queues.require_queue(context.database, context.tenant_id, request.name)
    (view,) = await queues.list_queues(context.database, context.tenant_id, name=request.name)
    return view


@operation("queue.pause", "POST /api/v1/queues/{name}/pause", Access.OPERATOR, commands=("queue pause", "queue drain"))
async def pause_queue(context: OperationContext, request: NameAndReason) -> Paused:
    """Stops a queue from handing out tasks; running tasks continue."""
    is_changed = await queues.pause(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )
    return Paused(name=request.name, paused=True, is_changed=is_changed)


@operation("queue.resume", "POST /api/v1/queues/{name}/resume", Access.OPERATOR)
async def resume_queue(context: OperationContext, request: NameAndReason) -> Paused:
    """Allows a queue to hand out tasks again."""
    is_changed = await queues.resume(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )
    return Paused(name=request.name, paused=False, is_changed=is_changed)


@operation("queue.limit", "POST /api/v1/queues/{name}/limit", Access.OPERATOR)
async def limit_queue(context: OperationContext, request: LimitQueue) -> QueueView:
    """Sets or removes limits of a queue."""
    if request.running is request.per_second is request.retries is request.retry_share is UNSET:
        raise _nothing_named()
    await queues.ensure(context.database, context.tenant_id, bounds.valid_queue(request.name))
    if request.retries is not UNSET or request.retry_share is not UNSET:
        await _limit_retries(context, request.name, request.retries, request.retry_share, request.reason)
    if request.running is not UNSET or request.per_second is not UNSET:
        await queues.limit(
            context.engine,
            context.tenant_id,
            request.name,
            max_running=request.running,
            starts_per_second=request.per_second,
            actor=context.actor,
            reason=request.reason,
        )
    return await _queue(context, request.name)


async def _queue(context: OperationContext, name: str) -> QueueView:
    (view,) = await queues.list_queues(context.database, context.tenant_id, name=name, with_history=False)
    return view


@operation("quota.list", "GET /api/v1/quotas", Access.VIEWER, commands=("queue limit",))
async def show_quotas(context: OperationContext, request: Empty) -> Quotas:
    """Lists the quotas on retries, and how much room they have."""
    return Quotas(quotas=await list_quotas(context.database, context.tenant_id))


@operation("quota.limit", "POST /api/v1/quotas", Access.OPERATOR, commands=("queue limit",))
async def limit_retries(context: OperationContext, request: LimitRetries) -> Quotas:
    """Sets or removes the quota on the retries of all queues together; returns all quotas."""
    if request.retries is request.retry_share is UNSET:
        raise _nothing_named()
    await _limit_retries(context, None, request.retries, request.retry_share, request.reason)
    return Quotas(quotas=await list_quotas(context.database, context.tenant_id))


async def _limit_retries(
    context: OperationContext,
    queue: str | None,
    retries: str | UnsetType | None,
    share: str | UnsetType | None,
    reason: str,
) -> None:
    def change(now: Quota | None) -> Quota | None:
        return changed_quota(now, retries, share)

    await change_quota(context.engine, context.tenant_id, change, queue=queue, actor=context.actor, reason=reason)


def _nothing_named() -> Invalid:
    return Invalid(
        "No limit was named.",
        code="invalid_limit",
        advice="Give `running`, `per_second`, `retries` or `retry_share`.",
    )


@operation("queue.names", "GET /api/v1/queue-names", Access.VIEWER, commands=())
async def name_queues(context: OperationContext, request: Empty) -> QueueNames:
    """Returns the names of the first thousand queues."""
    return QueueNames(names=await queues.queue_names(context.database, context.tenant_id))


OPERATIONS = (
    list_queues,
    show_queue,
    name_queues,
    pause_queue,
    resume_queue,
    limit_queue,
    show_quotas,
    limit_retries,
)
