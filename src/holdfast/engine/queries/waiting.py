"""Nodes of runs that wait for an approval or an event from outside."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.core.flows.nodes import Node
from holdfast.core.flows.wait import WaitFacts, answers_to
from holdfast.engine.queries.pages import reading
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.queries import runs as runs_sql


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """One waiting node. `moves` are the commands that end the wait; `prompt` is the question of an approval."""

    run_id: str
    node: str
    task_id: str
    flow: str
    version: int
    kind: str
    event: str
    key: str | None
    prompt: str
    deadline: datetime | None
    run_created_at: datetime
    moves: list[str]
    at: datetime


async def list_waits(
    database: Database, catalog: Catalog, tenant_id: int, *, after: int = 0, limit: int = 50
) -> list[WaitView]:
    """Return a page of waiting nodes, oldest run first; the next page begins `after` the last task id of this one."""
    async with reading(database) as session:
        rows = await runs_sql.list_waits(session, tenant_id, None, None, after, limit)
    async with database.session() as session:
        return await _views(session, catalog, rows)


async def waits_of(
    session: Session, catalog: Catalog, tenant_id: int, *, wait_key: str, run_id: int | None, limit: int
) -> list[WaitView]:
    """Return at most `limit` nodes that wait for one event now."""
    rows = await runs_sql.list_waits(session, tenant_id, wait_key, run_id, 0, limit)
    return await _views(session, catalog, rows)


def wait_facts(node: Node, *, wait_key: str | None, deadline: datetime | None) -> WaitFacts:
    """Return what one node waits for."""
    prompt = node.config.get("prompt")
    return WaitFacts(
        name=node.action,
        key=wait_key or node.action,
        is_approval=node.config.get("approval") is True,
        deadline=deadline,
        prompt=prompt if isinstance(prompt, str) else "",
    )


async def _views(session: Session, catalog: Catalog, rows: list[runs_sql.ListWaitsRow]) -> list[WaitView]:
    await catalog.flows.learn({row.snapshot_id for row in rows}, session)
    return [_view(catalog.flows.snapshot(row.snapshot_id), row) for row in rows]


def _view(snapshot: FlowSnapshot, row: runs_sql.ListWaitsRow) -> WaitView:
    definition, node = snapshot.plan.definition, snapshot.plan.nodes[row.node_no]
    facts = wait_facts(node, wait_key=row.wait_key, deadline=row.deadline)
    run_id = str(row.run_id)
    return WaitView(
        run_id=run_id,
        node=node.name,
        task_id=str(row.run_id + 1 + row.node_no),
        flow=definition.name,
        version=definition.version,
        kind="approval" if facts.is_approval else "event",
        event="" if facts.is_approval else facts.name,
        key=None if facts.is_approval else facts.event_key,
        prompt=facts.prompt,
        deadline=facts.deadline,
        run_created_at=row.created_at,
        moves=list(answers_to(facts, run_id, node.name)),
        at=row.at,
    )
