"""Operations on waiting nodes: list them, answer approvals, and send signals."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.runs.approvals import answer_approval
from holdfast.engine.lifecycle.runs.signals import Sent, send_by_hand
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.queries import waiting
from holdfast.engine.queries.runs import show_run
from holdfast.engine.queries.waiting import WaitView
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import KeyUse, Request, operation
from holdfast.operations.paging import PAGE, Limit, next_of, rows_of
from holdfast.operations.submit import SUBMIT_BYTES_MAX


class ListWaits(Request, frozen=True, kw_only=True):
    """`after` is the `next` of the previous page."""

    after: str | None = None
    limit: Limit = PAGE


class WaitPage(msgspec.Struct, frozen=True, kw_only=True):
    waits: list[WaitView]
    next: str | None


class ApproveNode(Request, frozen=True, kw_only=True):
    """A node of a run, and the reason."""

    run_id: str
    node: str
    reason: str = ""


class RejectNode(Request, frozen=True, kw_only=True):
    """A node of a run, and the reason, with which the node fails."""

    run_id: str
    node: str
    reason: str


class NodeAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted answer, and the run's state after it. `is_early`: the node does not wait yet."""

    run_id: str
    node: str
    answer: str
    is_early: bool
    state: str


class SendSignal(Request, frozen=True, kw_only=True):
    """The name of an event, the key that waits may require, its data, and the only run it is for, if any."""

    name: str
    key: str | None = None
    data: Any = None
    run_id: str | None = None
    reason: str = ""


@operation("run.waiting", "GET /api/v1/waits", Access.VIEWER)
async def list_waits(context: OperationContext, request: ListWaits) -> WaitPage:
    """Lists nodes that wait for an approval or an event, with what would answer them; oldest runs first."""
    after = 0 if request.after is None else bounds.task_number(request.after)
    limit = rows_of(request.limit)
    rows = await waiting.list_waits(
        context.database, context.engine.catalog, context.tenant_id, after=after, limit=limit
    )
    return WaitPage(waits=rows, next=next_of(rows, limit, lambda row: row.task_id))


@operation("run.approve", "POST /api/v1/runs/{run_id}/nodes/{node}/approve", Access.OPERATOR)
async def approve_node(context: OperationContext, request: ApproveNode) -> NodeAnswered:
    """Approves a node, once; a node that does not wait yet takes the approval when it does."""
    return await _answer(context, request.run_id, request.node, is_given=True, reason=request.reason)


@operation("run.reject", "POST /api/v1/runs/{run_id}/nodes/{node}/reject", Access.OPERATOR)
async def reject_node(context: OperationContext, request: RejectNode) -> NodeAnswered:
    """Rejects a node, once: the node fails."""
    reason = bounds.required_reason(request.reason)
    return await _answer(context, request.run_id, request.node, is_given=False, reason=reason)


async def _answer(context: OperationContext, run_id: str, node: str, *, is_given: bool, reason: str) -> NodeAnswered:
    number = bounds.run_number(run_id)
    where = (context.database, context.engine.catalog, context.tenant_id)
    done = await answer_approval(*where, number, node, is_given=is_given, actor=context.actor, reason=reason)
    await publish_and_propagate(context.engine, done.notifications)
    return NodeAnswered(
        run_id=run_id,
        node=node,
        answer="approved" if is_given else "rejected",
        is_early=done.is_early,
        state=(await show_run(*where, number)).state,
    )


@operation(
    "run.signal",
    "POST /api/v1/signals",
    Access.OPERATOR,
    status=201,
    once=KeyUse.STORED,
    body_bytes_max=SUBMIT_BYTES_MAX,
)
async def send_signal(context: OperationContext, request: SendSignal) -> Sent:
    """Sends an event to runs that wait for it or will wait for it, or to one of them."""
    wait_key = bounds.valid_key(request.name if request.key is None else f"{request.name}:{request.key}")
    bytes_max = context.engine.settings.limits.input_bytes_max
    sent, notifications = await send_by_hand(
        context.database,
        context.engine.catalog,
        context.tenant_id,
        wait_key,
        json_codec.encode(request.data, bytes_max=bytes_max, what="input"),
        run_id=None if request.run_id is None else bounds.run_number(request.run_id),
        actor=context.actor,
        reason=request.reason,
        once=context.once,
    )
    await publish_and_propagate(context.engine, notifications)
    return sent


OPERATIONS = (list_waits, approve_node, reject_node, send_signal)
