"""Queries of runs: paginated lists, and one run in full with all its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.flows.run_state import RunState
from holdfast.core.values.bounds import no_run
from holdfast.engine.lifecycle.runs.children import run_output
from holdfast.engine.queries.pages import ID_MAX, SCAN_ROWS_MAX, full_page, reading, valid_limit
from holdfast.engine.queries.status import RunStatus
from holdfast.engine.queries.tasks import error_line
from holdfast.errors import Invalid, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.flows import run_commands as run_commands_sql
from holdfast.store.sql.queries import runs as runs_sql

SCAN_OPEN_MAX = 50
"""How many open runs one page reads: their state is computed one by one."""

STATES = tuple(state.value for state in RunState)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(RunStatus):
    """The fields that lists and detail views of a run share."""

    generation: int
    created_at: datetime
    ended_at: datetime | None
    key: str | None
    tags: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListRow(RunSummary):
    """One row of a list. `error` is the first failure with its node, on one line."""

    parent_run_id: str | None
    original_run_id: str | None
    error: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node of a run. Item counts belong to a node that maps; `child_run_id` is the run that a node started."""

    node: str
    state: str
    attempt: int
    task_id: str
    kind: str
    action: str
    generation: int
    started_at: datetime | None
    ended_at: datetime | None
    items: int | None
    items_pending: int | None
    items_failed: int | None
    child_run_id: str | None
    wait_key: str | None
    deadline: datetime | None
    error: str | None

    @property
    def progress(self) -> str:
        """Return `37/100` for a node with items, else an empty string."""
        return "" if self.items is None else f"{self.items - (self.items_pending or 0)}/{self.items}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView(RunSummary):
    """One run in full; `tasks` are its nodes in the order of the flow. `output` is set only for a completed run."""

    max_active: int | None
    priority: int | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    canceled_at: datetime | None
    canceled_by: str | None
    cancel_reason: str | None
    parent_run_id: str | None
    original_run_id: str | None
    input: msgspec.Raw
    output: msgspec.Raw
    tasks: list[NodeView]
    at: datetime


async def list_runs(
    database: Database, catalog: Catalog, tenant_id: int, *, before: int | None = None, limit: int = 50, **asked: Any
) -> list[RunListRow]:
    """Return the requested number of runs, newest first."""

    async def page(begin: int | None, left: int) -> tuple[list[RunListRow], int | None]:
        return await run_page(database, catalog, tenant_id, **asked, before=begin, limit=left)

    return await full_page(page, limit, before)


async def run_page(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    *,
    states: Sequence[str] = (),
    flow: str | None = None,
    tag: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> tuple[list[RunListRow], int | None]:
    """Return a page of runs, newest first, and the `before` of the next page; None if there are no more.

    A page reads a bounded number of rows, so a selective filter may give a short or empty page with more rows after it.
    """
    for state in states:
        if state not in STATES:
            raise Invalid(
                f"{state!r} is not a state of a run.", code="invalid_state", advice=f"Choose from {', '.join(STATES)}."
            )
    valid_limit(limit)
    snapshots = None if flow is None else await catalog.flows.snapshot_ids(tenant_id, flow)
    if snapshots == []:
        return [], None
    asked = (tenant_id, list(states) or None, snapshots, tag, ID_MAX if before is None else before, limit)
    async with reading(database) as session:
        found = await runs_sql.list_runs(session, *asked, max(limit, SCAN_OPEN_MAX), max(limit, SCAN_ROWS_MAX))
    rows = [_run_line(row) for row in found if row.run_id is not None]
    if len(rows) == limit:
        return rows, int(rows[-1].run_id)
    return rows, found[0].floor


async def show_run(database: Database, catalog: Catalog, tenant_id: int, run_id: int) -> RunView:
    """Return one run with all its nodes; raise `NotFound` if it does not exist."""
    row, snapshot, nodes = await read_run(database, catalog, tenant_id, run_id)
    numbers = [node.node_no for node in nodes if node.state in ("failed", "retrying") or node.items_failed]
    failures = {one.node_no: error_line(one) for one in await runs_sql.last_failures(database, run_id, numbers)}
    output = json_codec.NULL
    if row.state == RunState.COMPLETED:
        async with database.session() as session:
            found = await run_output(session, catalog, run_id, row.snapshot_id)
        output = msgspec.Raw(msgspec.json.encode(found))
    columns = {
        name: value for name, value in row._asdict().items() if name not in ("run_id", "snapshot_id", "parent_node")
    }
    columns |= {
        "tags": row.tags or [],
        "parent_run_id": _id(row.parent_run_id),
        "original_run_id": _id(row.original_run_id),
        "input": msgspec.Raw(row.input),
    }
    views = [_node_view(snapshot, node, failures.get(node.node_no)) for node in nodes]
    return RunView(run_id=str(run_id), output=output, tasks=views, **columns)


async def read_run(
    database: Database, catalog: Catalog, tenant_id: int, run_id: int
) -> tuple[runs_sql.ShowRunRow, FlowSnapshot, list[run_commands_sql.NodeStatesRow]]:
    """Return the row of a run, its flow snapshot and the states of its nodes, in one snapshot; `NotFound` if it does
    not exist."""
    async with database.transaction() as session:
        await session.execute("set transaction isolation level repeatable read, read only")
        row = await runs_sql.show_run(session, run_id, tenant_id)
        if row is None:
            raise no_run(run_id)
        await catalog.flows.learn([row.snapshot_id], session)
        nodes = await run_commands_sql.node_states(session, run_id, tenant_id)
    return row, catalog.flows.snapshot(row.snapshot_id), nodes


def no_node(run_id: object, name: str, known: Sequence[str]) -> NotFound:
    """Build the error for a run that has no node of that name."""
    return NotFound(
        f"Run {run_id} has no node {name}.",
        code="DAG_VALIDATION_NODE_NOT_FOUND",
        advice=f"It has {', '.join(known[:20])}.",
    )


def _run_line(row: runs_sql.ListRunsRow) -> RunListRow:
    found = row._asdict()
    node = found.pop("failed_node")
    line = error_line(row)
    for name in ("code", "type", "message", "floor"):
        del found[name]
    return RunListRow(**found, error=f"{node}: {line or 'failed'}" if node is not None else None)


def _node_view(snapshot: FlowSnapshot, row: run_commands_sql.NodeStatesRow, error: str | None) -> NodeView:
    node = snapshot.plan.nodes[row.node_no]
    return NodeView(
        node=node.name,
        state=row.state,
        attempt=row.attempt,
        task_id=str(row.task_id),
        kind=node.kind,
        action=node.action,
        generation=row.generation,
        started_at=row.started_at,
        ended_at=row.ended_at,
        items=row.items,
        items_pending=row.items_pending,
        items_failed=row.items_failed,
        child_run_id=_id(row.child_run_id),
        wait_key=row.wait_key,
        deadline=row.deadline,
        error=error,
    )


def _id(number: int | None) -> str | None:
    return None if number is None else str(number)
