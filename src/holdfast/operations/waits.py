"""Operations on waiting nodes: list them, answer approvals, and send signals."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.runs.signals import Sent
from holdfast.engine.queries import waiting
from holdfast.engine.queries.runs import show_run
from holdfast.engine.queries.waiting import WaitView
from holdfast.engine.use_cases import runs as run_use_cases
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
    engine, number = context.engine, bounds.run_number(run_id)
    done = await run_use_cases.answer_approval(
        engine, number, node, is_given=is_given, actor=context.actor, reason=reason
    )
    run = await show_run(engine.database, engine.catalog, engine.tenant_id, number)
    return NodeAnswered(
        run_id=run_id,
        node=node,
        answer="approved" if is_given else "rejected",
        is_early=done.is_early,
        state=run.state,
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
    return await run_use_cases.send_operator_signal(
        context.engine,
        request.name,
        request.data,
        key=request.key,
        run_id=None if request.run_id is None else bounds.run_number(request.run_id),
        actor=context.actor,
        reason=request.reason,
        once=context.once,
    )


OPERATIONS = (list_waits, approve_node, reject_node, send_signal)
