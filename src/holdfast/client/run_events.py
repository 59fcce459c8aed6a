"""Event stream of one run: from any cursor, without loss or repetition, until the run is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.values.bounds import no_run
from holdfast.engine.queries.events import START, NodeEvent, run_events_after
from holdfast.store.database import TRANSIENT
from holdfast.store.sql.flows import runs as runs_sql

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


POLL_SECONDS_FIRST = 0.05
POLL_SECONDS_MAX = 0.5


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run (`node` None), of one of its nodes, or of an item of a node.

    `cursor` resumes after it. For events of one node, `order` gives the order even if transactions overlapped.
    """

    cursor: str
    at: datetime
    kind: str
    node: str | None
    item: int | None
    task_id: str
    attempt: int
    detail: dict[str, Any] | None
    order: int


async def run_events(engine: Engine, run_id: int, after: str = START) -> AsyncIterator[RunEvent]:
    """Yield the events of a run after a cursor, until the run is over and all its events were delivered.

    While the database is unavailable it waits. Raises `NotFound` if there is no such run, `Invalid` if `after` is not a
    cursor.
    """
    names = await _node_names(engine, run_id)
    cursor, ended_by, pause = after, "", POLL_SECONDS_FIRST
    while True:
        try:
            page = await run_events_after(engine.database, engine.tenant_id, run_id, cursor, ended_by=ended_by)
        except TRANSIENT:
            await asyncio.sleep(POLL_SECONDS_MAX)
            continue
        for event in page.events:
            yield _named(event, names)
        cursor, ended_by = page.cursor, page.tail
        if page.is_end:
            return
        pause = POLL_SECONDS_FIRST if page.events else min(pause * 1.5, POLL_SECONDS_MAX)
        if page.is_all:
            await asyncio.sleep(pause)


async def named_events(engine: Engine, run_id: int, events: Sequence[NodeEvent]) -> list[RunEvent]:
    """Return events of a run with the names of its nodes."""
    if not events:
        return []
    names = await _node_names(engine, run_id)
    return [_named(event, names) for event in events]


async def _node_names(engine: Engine, run_id: int) -> list[str]:
    async with engine.database.session() as session:
        row = await runs_sql.run_snapshots(session, [run_id], engine.tenant_id)
        if row is None:
            raise no_run(run_id)
        await engine.catalog.flows.learn([row.snapshot_id], session)
    return [node.name for node in engine.catalog.flows.snapshot(row.snapshot_id).plan.nodes]


def _named(event: NodeEvent, names: list[str]) -> RunEvent:
    return RunEvent(
        cursor=event.cursor,
        at=event.at,
        kind=event.kind,
        node=None if event.node_no is None else names[event.node_no],
        item=event.item,
        task_id=event.task_id,
        attempt=event.attempt,
        detail=event.detail,
        order=event.order,
    )
