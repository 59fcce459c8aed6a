"""Operations on runs of flows: start, list, show, draw, explain, retry, cancel, pause and resume."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.effects.gate import EffectView
from holdfast.engine.lifecycle.runs.commands import PlannedRetry
from holdfast.engine.lifecycle.runs.redrive import Redriven
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.engine.queries import runs
from holdfast.engine.queries.pages import moment_of, younger
from holdfast.engine.queries.runs import RunListRow, RunView, read_run
from holdfast.engine.queries.status import NEW, run_state
from holdfast.engine.use_cases import runs as run_use_cases
from holdfast.errors import Conflict, Invalid
from holdfast.operations.context import OperationContext
from holdfast.operations.explanation import ExplanationView, why_of
from holdfast.operations.operation import KeyUse, Request, operation
from holdfast.operations.paging import PAGE, Limit, rows_of, words
from holdfast.operations.submit import SUBMIT_BYTES_MAX


class OfRun(Request, frozen=True, kw_only=True):
    run_id: str


class SteerRun(Request, frozen=True, kw_only=True):
    run_id: str
    reason: str = ""


class ListRuns(Request, frozen=True, kw_only=True):
    """Filters; `state` may be repeated. `since` is a time, or a duration before now; `before` is the last `next`."""

    state: list[str] = msgspec.field(default_factory=list)
    flow: str | None = None
    tag: str | None = None
    since: str | None = None
    before: str | None = None
    limit: Limit = PAGE


class RunListPage(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[RunListRow]
    next: str | None


class StartRun(Request, frozen=True, kw_only=True):
    """A run of a flow that a worker declared, or with `clone` a copy of another run, in the version of the original.
    Tags, priority and limit given here replace those of the original; `input` is merged into its input.
    """

    flow: str | None = None
    clone: str | None = None
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    version: int | None = None
    key: str | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    priority: int | None = None
    max_active: int | None = None


class RunStateView(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    state: str


class ExplainRun(Request, frozen=True, kw_only=True):
    """A run, or one of its nodes."""

    run_id: str
    node: str | None = None


class RetryRun(Request, frozen=True, kw_only=True):
    """A run, optionally one node, and the reason. Without a node, everything that failed is run again."""

    run_id: str
    reason: str
    node: str | None = None


class RunRetried(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that run again, and their earlier effects.

    `unknown_effects` may have happened already and are sent again under the same keys. `undone_effects` were
    compensated; requested again under their keys, they fail.
    """

    run_id: str
    reset: list[str]
    unknown_effects: list[EffectView]
    undone_effects: list[EffectView]


class PlanRetry(Request, frozen=True, kw_only=True):
    """A run, optionally one node. Without a node, everything that failed would be run again."""

    run_id: str
    node: str | None = None


class RetryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that would run again, the first of them (`roots`), and their earlier effects."""

    run_id: str
    reset: list[str]
    unknown_effects: list[EffectView]
    undone_effects: list[EffectView]
    roots: list[str]
    dry_run: bool = True


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    state: str
    attempt: int
    items: int | None
    items_pending: int | None
    is_waiting: bool = False
    """Whether no task runs and the node waits for an approval or another event."""


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True):
    upstream: str
    downstream: str


class RunGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The flow of a run, with the states of its nodes."""

    run_id: str
    flow: str
    version: int
    state: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    definition: dict[str, Any]


@operation("run.list", "GET /api/v1/runs", Access.VIEWER)
async def list_runs(context: OperationContext, request: ListRuns) -> RunListPage:
    """Lists runs, newest first, in pages."""
    rows, following = await runs.run_page(
        context.database,
        context.engine.catalog,
        context.tenant_id,
        states=words(request.state),
        flow=request.flow,
        tag=request.tag,
        before=None if request.before is None else bounds.run_number(request.before),
        limit=rows_of(request.limit),
    )
    rows, is_end = younger(rows, lambda row: row.created_at, await moment_of(context.database, request.since))
    return RunListPage(runs=rows, next=None if following is None or is_end else str(following))


@operation(
    "run.start", "POST /api/v1/runs", Access.OPERATOR, status=201, once=KeyUse.OWN, body_bytes_max=SUBMIT_BYTES_MAX
)
async def start_run(context: OperationContext, request: StartRun) -> RunStateView:
    """Starts a run of a flow, or a copy of another run."""
    options = RunOptions(
        max_active=_positive(request.max_active),
        priority=None if request.priority is None else bounds.valid_priority(request.priority),
        tags=bounds.valid_tags(request.tags),
        key=request.key,
    )
    if request.clone is not None and request.flow is None:
        if request.version is not None:
            raise Invalid(
                "A copy runs the version that its original ran.",
                code="invalid_start",
                advice="Leave the version out, or start the flow by its name.",
            )
        run_id = await run_use_cases.copy_run(context.engine, bounds.run_number(request.clone), request.input, options)
    elif request.flow is not None and request.clone is None:
        run_id = await run_use_cases.start_declared(
            context.engine, request.flow, request.input, options, version=request.version
        )
    else:
        raise Invalid("Name a flow, or a run to clone.", code="invalid_start", advice="Give `flow` or `clone`.")
    state = NEW
    if request.key is not None:
        # With a key, this may be a run that was started before.
        state = await run_state(context.database, context.tenant_id, run_id)
    return RunStateView(run_id=str(run_id), state=state)


def _positive(count: int | None) -> int | None:
    if count is not None and not 1 <= count < 2**31:
        raise Invalid(f"max_active must be 1 or more, not {count}.", code="invalid_start")
    return count


@operation("run.show", "GET /api/v1/runs/{run_id}", Access.VIEWER)
async def show_run(context: OperationContext, request: OfRun) -> RunView:
    """Shows one run with all its nodes."""
    return await context.client.run(request.run_id).show()


@operation("run.why", "GET /api/v1/runs/{run_id}/why", Access.VIEWER)
async def why_run(context: OperationContext, request: ExplainRun) -> ExplanationView:
    """Explains why a run, or a node of it, is in its state."""
    explanation = await context.client.run(request.run_id).why(request.node)
    return why_of(explanation, run_id=request.run_id, node=msgspec.UNSET if request.node is None else request.node)


@operation("run.graph", "GET /api/v1/runs/{run_id}/graph", Access.VIEWER)
async def graph_run(context: OperationContext, request: OfRun) -> RunGraph:
    """Returns the flow of a run as a graph, with the state of each node."""
    number = bounds.run_number(request.run_id)
    row, snapshot, nodes = await read_run(context.database, context.engine.catalog, context.tenant_id, number)
    names = [node.name for node in snapshot.plan.nodes]
    by_place = sorted(nodes, key=lambda node: int(node.node_no))
    return RunGraph(
        run_id=request.run_id,
        flow=row.flow,
        version=row.version,
        state=row.state,
        nodes=[
            GraphNode(
                node=names[node.node_no],
                state=node.state,
                attempt=node.attempt,
                items=node.items,
                items_pending=node.items_pending,
                is_waiting=node.state == "running" and bool(node.wait_key),
            )
            for node in by_place
        ],
        edges=[
            GraphEdge(upstream=names[up], downstream=names[down])
            for down, ups in enumerate(snapshot.plan.upstream)
            for up in ups
        ],
        definition=snapshot.plan.definition.to_json(),
    )


@operation("run.retry", "POST /api/v1/runs/{run_id}/retry", Access.OPERATOR, status=202, once=KeyUse.STORED)
async def retry_run(context: OperationContext, request: RetryRun) -> RunRetried:
    """Runs again what failed, with everything downstream of it."""
    plan = await _planned(context, request)

    def answer(done: Redriven) -> RunRetried:
        return RunRetried(
            run_id=request.run_id,
            reset=done.reset,
            unknown_effects=plan.unknown_effects,
            undone_effects=plan.undone_effects,
        )

    done = await run_use_cases.retry_run(
        context.engine,
        bounds.run_number(request.run_id),
        actor=context.actor,
        reason=request.reason,
        only=request.node,
        once=context.once,
        answer=answer,
    )
    return answer(done)


async def _planned(context: OperationContext, request: RetryRun) -> PlannedRetry:
    """Return what would run again. A repeated request under the same key gets its first response."""
    if context.once is not None:
        await context.once.look(context.database)
    try:
        return await context.client.run(request.run_id).plan_retry(only=request.node)
    except Conflict:
        if context.once is not None:
            await context.once.look(context.database)
        raise


@operation("run.plan_retry", "GET /api/v1/runs/{run_id}/retry-plan", Access.VIEWER, commands=("run retry",))
async def plan_retry(context: OperationContext, request: PlanRetry) -> RetryPlan:
    """Returns what a retry of a run would run again and which effects may repeat, and changes nothing."""
    plan = await context.client.run(request.run_id).plan_retry(only=request.node)
    return RetryPlan(
        run_id=request.run_id,
        reset=plan.reset,
        unknown_effects=plan.unknown_effects,
        undone_effects=plan.undone_effects,
        roots=plan.roots,
    )


@operation("run.cancel", "POST /api/v1/runs/{run_id}/cancel", Access.OPERATOR, status=202)
async def cancel_run(context: OperationContext, request: SteerRun) -> RunStateView:
    """Cancels a run: no more nodes start, waiting nodes end, running ones are asked to stop."""
    number = bounds.run_number(request.run_id)
    await run_use_cases.cancel_run(context.engine, number, actor=context.actor, reason=request.reason)
    return await _state_after(context, request.run_id)


@operation("run.pause", "POST /api/v1/runs/{run_id}/pause", Access.OPERATOR)
async def pause_run(context: OperationContext, request: SteerRun) -> RunStateView:
    """Pauses a run: no more nodes start until it is resumed."""
    number = bounds.run_number(request.run_id)
    await run_use_cases.pause_run(context.engine, number, actor=context.actor, reason=request.reason)
    return await _state_after(context, request.run_id)


@operation("run.resume", "POST /api/v1/runs/{run_id}/resume", Access.OPERATOR)
async def resume_run(context: OperationContext, request: SteerRun) -> RunStateView:
    """Resumes a paused run."""
    number = bounds.run_number(request.run_id)
    await run_use_cases.resume_run(context.engine, number, actor=context.actor, reason=request.reason)
    return await _state_after(context, request.run_id)


async def _state_after(context: OperationContext, run_id: str) -> RunStateView:
    return RunStateView(run_id=run_id, state=(await context.client.run(run_id).show()).state)


OPERATIONS = (
    list_runs,
    start_run,
    show_run,
    why_run,
    graph_run,
    retry_run,
    plan_retry,
    cancel_run,
    pause_run,
    resume_run,
)
