"""Queues and their limits, and the quotas on retries."""

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
from holdfast.operations.context import Clerk
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import page_of
from holdfast.operations.quota_text import changed_quota
from holdfast.operations.shared_types import ListNames, Nothing, Paused, Steer


class ListQueues(ListNames, frozen=True, kw_only=True):
    """`history=false` leaves out what is counted of history."""

    history: bool = True


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueView]
    next: str | None


class OfQueue(Request, frozen=True, kw_only=True):
    """Which queue."""

    name: str


class LimitQueue(Request, frozen=True, kw_only=True):
    """Limits to set; null lifts one, and what is not named stays. `retries` is as `100/1m`, `retry_share` as `20%`."""

    name: str
    running: int | UnsetType | None = UNSET
    per_second: float | UnsetType | None = UNSET
    retries: str | UnsetType | None = UNSET
    retry_share: str | UnsetType | None = UNSET
    reason: str = ""


class LimitRetries(Request, frozen=True, kw_only=True):
    """The quota on the retries of all queues together; null lifts a part, and what is not named stays."""

    retries: str | UnsetType | None = UNSET
    retry_share: str | UnsetType | None = UNSET
    reason: str = ""


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    quotas: list[QuotaView]


class QueueNames(msgspec.Struct, frozen=True, kw_only=True):
    names: list[str]


@operation("queue.list", "GET /api/v1/queues", Access.VIEWER, commands=("queue list", "top"))
async def list_queues(clerk: Clerk, asked: ListQueues) -> QueuePage:
    """Lists queues with their counts."""
    rows = await queues.list_queues(clerk.database, clerk.tenant_id, with_history=asked.history)
    page, following = page_of(rows, lambda row: row.name, asked.after, asked.limit)
    return QueuePage(queues=page, next=following)


@operation("queue.show", "GET /api/v1/queues/{name}", Access.VIEWER)
async def show_queue(clerk: Clerk, asked: OfQueue) -> QueueView:
    """Shows one queue with its counts and limits."""
    await queues.require_queue(clerk.database, clerk.tenant_id, asked.name)
    (view,) = await queues.list_queues(clerk.database, clerk.tenant_id, name=asked.name)
    return view


@operation("queue.pause", "POST /api/v1/queues/{name}/pause", Access.OPERATOR, commands=("queue pause", "queue drain"))
async def pause_queue(clerk: Clerk, asked: Steer) -> Paused:
    """Stops a queue from handing out work; what runs goes on."""
    is_changed = await queues.pause(clerk.engine, clerk.tenant_id, asked.name, actor=clerk.actor, reason=asked.reason)
    return Paused(name=asked.name, paused=True, is_changed=is_changed)


@operation("queue.resume", "POST /api/v1/queues/{name}/resume", Access.OPERATOR)
async def resume_queue(clerk: Clerk, asked: Steer) -> Paused:
    """Lets a queue hand out work again."""
    is_changed = await queues.resume(clerk.engine, clerk.tenant_id, asked.name, actor=clerk.actor, reason=asked.reason)
    return Paused(name=asked.name, paused=False, is_changed=is_changed)


@operation("queue.limit", "POST /api/v1/queues/{name}/limit", Access.OPERATOR)
async def limit_queue(clerk: Clerk, asked: LimitQueue) -> QueueView:
    """Limits a queue, or lifts limits."""
    if asked.running is asked.per_second is asked.retries is asked.retry_share is UNSET:
        raise _nothing_named()
    await queues.ensure(clerk.database, clerk.tenant_id, bounds.valid_queue(asked.name))
    if asked.retries is not UNSET or asked.retry_share is not UNSET:
        await _limit_retries(clerk, asked.name, asked.retries, asked.retry_share, asked.reason)
    if asked.running is not UNSET or asked.per_second is not UNSET:
        await queues.limit(
            clerk.engine,
            clerk.tenant_id,
            asked.name,
            max_running=asked.running,
            starts_per_second=asked.per_second,
            actor=clerk.actor,
            reason=asked.reason,
        )
    return await _queue(clerk, asked.name)


async def _queue(clerk: Clerk, name: str) -> QueueView:
    (view,) = await queues.list_queues(clerk.database, clerk.tenant_id, name=name, with_history=False)
    return view


@operation("quota.list", "GET /api/v1/quotas", Access.VIEWER, commands=("queue limit",))
async def show_quotas(clerk: Clerk, asked: Nothing) -> Quotas:
    """Lists the quotas on retries, and how much room they have."""
    return Quotas(quotas=await list_quotas(clerk.database, clerk.tenant_id))


@operation("quota.limit", "POST /api/v1/quotas", Access.OPERATOR, commands=("queue limit",))
async def limit_retries(clerk: Clerk, asked: LimitRetries) -> Quotas:
    """Sets or lifts the quota on the retries of all queues together; answers every quota there is."""
    if asked.retries is asked.retry_share is UNSET:
        raise _nothing_named()
    await _limit_retries(clerk, None, asked.retries, asked.retry_share, asked.reason)
    return Quotas(quotas=await list_quotas(clerk.database, clerk.tenant_id))


async def _limit_retries(
    clerk: Clerk, queue: str | None, retries: str | UnsetType | None, share: str | UnsetType | None, reason: str
) -> None:
    def change(now: Quota | None) -> Quota | None:
        return changed_quota(now, retries, share)

    await change_quota(clerk.engine, clerk.tenant_id, change, queue=queue, actor=clerk.actor, reason=reason)


def _nothing_named() -> Invalid:
    return Invalid(
        "No limit was named.",
        code="invalid_limit",
        advice="Give `running`, `per_second`, `retries` or `retry_share`.",
    )


@operation("queue.names", "GET /api/v1/queue-names", Access.VIEWER, commands=())
async def name_queues(clerk: Clerk, asked: Nothing) -> QueueNames:
    """Names the first thousand queues."""
    return QueueNames(names=await queues.queue_names(clerk.database, clerk.tenant_id))


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
