"""Explain runs, and nodes without a task: read the facts in one snapshot and pass them to the pure explanation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from holdfast.core.explain.evidence import FailureFacts, RunPlace
from holdfast.core.explain.node import NAMES_MAX, explain_node
from holdfast.core.explain.node_evidence import (
    CauseFacts,
    ChildFacts,
    ItemsFacts,
    NodeEvidence,
    NodePosition,
    RunFacts,
    RunRestrictions,
    UpstreamFacts,
)
from holdfast.core.explain.run import explain_run
from holdfast.core.explain.task import Explanation
from holdfast.core.flows.bindings import output_value
from holdfast.core.flows.cause import cause_of
from holdfast.core.flows.condition import describe
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.flows.plan import Plan
from holdfast.core.flows.run_state import RunState
from holdfast.core.flows.wait import WaitFacts
from holdfast.core.health.liveness import SILENT_SECONDS_MIN
from holdfast.core.tasks.states import ATTEMPT_ENDS, TaskState
from holdfast.core.values.bounds import no_run
from holdfast.engine.lifecycle.runs.outputs import values_of
from holdfast.engine.queries.explain_task import why_task
from holdfast.engine.queries.runs import no_node, read_run
from holdfast.engine.queries.waiting import wait_facts
from holdfast.errors import Invalid, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.sql.flows import run_commands as run_commands_sql
from holdfast.store.sql.queries import explain as explain_sql
from holdfast.store.sql.queries import runs as runs_sql

VALUE_CHARACTERS_MAX = 80
_LETTERS = {"h": NodePosition.HELD, "m": NodePosition.ITEMS, "s": NodePosition.CHILD, "w": NodePosition.WAIT}
_ORDER = (*TaskState, "retrying")


async def why(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    *,
    silent_seconds: float = SILENT_SECONDS_MIN,
) -> Explanation:
    """Explain the state of a task, node or run; raise `NotFound` if it does not exist."""
    try:
        return await why_task(database, catalog, tenant_id, task_id, silent_seconds=silent_seconds)
    except NotFound:
        place = await explain_sql.locate_task(database, task_id, tenant_id)
        if place is None:
            raise
    if place.node_no is None:
        return await why_run(database, catalog, tenant_id, task_id, silent_seconds=silent_seconds)
    return await _why_bare(database, catalog, tenant_id, place.run_id, place.node_no)


async def why_node(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    name: str,
    *,
    silent_seconds: float = SILENT_SECONDS_MIN,
) -> Explanation:
    """Explain the state of one node of a run, by its name."""
    row = await runs_sql.show_run(database, run_id, tenant_id)
    if row is None:
        raise no_run(run_id)
    async with database.session() as session:
        await catalog.flows.learn([row.snapshot_id], session)
    number = catalog.flows.snapshot(row.snapshot_id).plan.number
    if name not in number:
        raise no_node(run_id, name, list(number))
    return await why(database, catalog, tenant_id, run_id + 1 + number[name], silent_seconds=silent_seconds)


async def why_run(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    *,
    silent_seconds: float = SILENT_SECONDS_MIN,
) -> Explanation:
    """Explain the state of a run; raise `NotFound` if it does not exist."""
    row, snapshot, nodes = await read_run(database, catalog, tenant_id, run_id)
    state = RunState(row.state)
    waiting = await runs_sql.waiting_counts(database, run_id, row.nodes)
    counts = Counter(node.state for node in nodes)
    failed = [node.node_no for node in nodes if node.state == TaskState.FAILED]
    front = ""
    if waiting.first_waiting is not None and state in (RunState.QUEUED, RunState.RUNNING):
        name = snapshot.plan.nodes[waiting.first_waiting - run_id - 1].name
        first = waiting.first_waiting
        found = await why(database, catalog, tenant_id, first, silent_seconds=silent_seconds)
        front = f"{name}: {found.headline}"
    return explain_run(
        RunFacts(
            run_id=str(run_id),
            flow=row.flow,
            version=row.version,
            state=state,
            at=row.at,
            created_at=row.created_at,
            ended_at=row.ended_at,
            nodes=row.nodes,
            generation=row.generation,
            counts=tuple((one, counts[one]) for one in _ORDER if counts[one]),
            names=tuple((one, _names(snapshot.plan, nodes, one)) for one in _ORDER if counts[one]),
            held=waiting.held,
            hold=_hold(row),
            cause=await _cause(database, snapshot.plan, nodes, run_id, failed[0] if failed else None),
            front=front,
            waits=_waits(snapshot.plan, nodes),
            parent="" if row.parent_run_id is None else f"started by a node of run {row.parent_run_id}",
            original="" if row.original_run_id is None else f"a copy of run {row.original_run_id}",
        )
    )


async def _why_bare(database: Database, catalog: Catalog, tenant_id: int, run_id: int, node_no: int) -> Explanation:
    row, snapshot, nodes = await read_run(database, catalog, tenant_id, run_id)
    plan, own = snapshot.plan, nodes[node_no]
    node, states = plan.nodes[node_no], [one.state for one in nodes]
    position = _LETTERS.get(own.state_code or "") if own.state in ("blocked", "running") else None
    position = position or NodePosition(own.state)
    blamed = cause_of(plan, states, node_no) if position is NodePosition.UPSTREAM_FAILED else None
    condition, value = "", ""
    if position is NodePosition.SKIPPED and node.condition is not None:
        condition, value = describe(node.condition), await _condition_value(database, catalog, plan, run_id, node)
    failures = await runs_sql.last_failures(database, run_id, [node_no])
    return explain_node(
        NodeEvidence(
            task_id=str(own.task_id),
            place=RunPlace(run_id=str(run_id), flow=row.flow, version=row.version, node=node.name),
            position=position,
            at=row.at,
            rule=node.trigger_rule,
            upstreams=tuple(
                UpstreamFacts(node=plan.nodes[one].name, state=states[one]) for one in plan.upstream[node_no]
            ),
            hold=_hold(row),
            cause=await _cause(database, plan, nodes, run_id, blamed),
            condition=condition,
            condition_value=value,
            items=_items(node, own),
            child=await _child(database, tenant_id, own.child_run_id),
            wait=_wait(node, own),
            failure=_failure(failures[0]) if failures else None,
        )
    )


def _waits(plan: Plan, nodes: Sequence[run_commands_sql.NodeStatesRow]) -> tuple[tuple[str, WaitFacts], ...]:
    """Return the first few nodes that wait for an approval or an event."""
    waiting = [(plan.nodes[one.node_no], one) for one in nodes if one.state_code == "w" and one.state == "running"]
    return tuple(
        (node.name, wait_facts(node, wait_key=row.wait_key, deadline=row.deadline)) for node, row in waiting[:NAMES_MAX]
    )


def _names(plan: Plan, nodes: Sequence[run_commands_sql.NodeStatesRow], state: str) -> tuple[str, ...]:
    return tuple(plan.nodes[one.node_no].name for one in nodes if one.state == state)[:NAMES_MAX]


def _hold(row: runs_sql.ShowRunRow) -> RunRestrictions:
    return RunRestrictions(
        paused_at=row.paused_at,
        paused_by=row.paused_by or "",
        paused_reason=row.paused_reason or "",
        max_active=row.max_active,
        active=row.active,
        canceled_at=row.canceled_at,
        canceled_by=row.canceled_by or "",
        cancel_reason=row.cancel_reason or "",
    )


async def _cause(
    database: Database, plan: Plan, nodes: Sequence[run_commands_sql.NodeStatesRow], run_id: int, node_no: int | None
) -> CauseFacts | None:
    if node_no is None:
        return None
    found = await runs_sql.last_failures(database, run_id, [node_no])
    return CauseFacts(
        node=plan.nodes[node_no].name,
        state=nodes[node_no].state,
        task_id=str(nodes[node_no].task_id),
        failure=_failure(found[0]) if found else None,
    )


def _failure(row: runs_sql.LastFailuresRow) -> FailureFacts:
    return FailureFacts(
        attempt=row.attempt,
        state=ATTEMPT_ENDS[row.state],
        code=row.code,
        type=row.type,
        message=row.message,
        reason=row.reason,
        rule=row.rule,
        sentence=row.sentence,
        ended_at=row.ended_at,
    )


async def _condition_value(database: Database, catalog: Catalog, plan: Plan, run_id: int, node: Node) -> str:
    """Return the value that the condition tested, shortened; empty if it does not exist."""
    assert node.condition is not None
    upstream = plan.number.get(node.condition.upstream)
    async with database.session() as session:
        values = await values_of(session, catalog, run_id, [] if upstream is None else [upstream])
    try:
        found = output_value(node.condition, node.name, values.input, values.outputs, values.absent)
    except Invalid:
        return ""
    text = json.dumps(found, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"


def _items(node: Node, row: run_commands_sql.NodeStatesRow) -> ItemsFacts | None:
    if row.items is None:
        return None
    return ItemsFacts(
        total=row.items,
        pending=row.items_pending or 0,
        failed=row.items_failed or 0,
        canceled=row.items_canceled or 0,
        concurrency=node.concurrency,
    )


async def _child(database: Database, tenant_id: int, child_run_id: int | None) -> ChildFacts | None:
    row = None if child_run_id is None else await runs_sql.show_run(database, child_run_id, tenant_id)
    if row is None:
        return None
    return ChildFacts(
        run_id=str(child_run_id),
        flow=row.flow,
        state=RunState(row.state),
        nodes=row.nodes,
        pending=row.pending,
    )


def _wait(node: Node, row: run_commands_sql.NodeStatesRow) -> WaitFacts | None:
    if node.kind is not NodeKind.WAIT:
        return None
    return wait_facts(node, wait_key=row.wait_key, deadline=row.deadline)
