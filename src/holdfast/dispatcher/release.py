"""Release: what follows from nodes that ended, in the transaction that ended them.

Under the locks of their runs: counters of downstream nodes, the tasks that may go now, and the end of the run with its
last node. The order of locks is task, run, node; one run's graph is changed by one transaction at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.progress import BLOCKED, HELD, RELEASED, SKIPPED, UPSTREAM_FAILED, End, NodeRow
from holdfast.core.states import TaskState
from holdfast.dispatcher.conditions import fails_condition
from holdfast.dispatcher.items import EVERY, count_items, let_items_go
from holdfast.dispatcher.locked import LockedRun, lock_runs, locked
from holdfast.dispatcher.news import News
from holdfast.dispatcher.special import start_special
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.statements import sql

_READ_NODES = sql("read_nodes")
_HELD_NODES = sql("held_nodes")
_ADVANCE_RUNS = sql("advance_runs")
_KEEP_COUNTS = sql("keep_counts")

WRITTEN_HERE = frozenset({BLOCKED, HELD, RELEASED, SKIPPED, UPSTREAM_FAILED})
"""States of nodes that are written at the end of an advance; the others were when the node began or ended."""


class NodeEnd(msgspec.Struct, frozen=True, gc=False):
    """A task of a run that is over."""

    task_id: int
    run_id: int
    node_no: int
    state: TaskState


async def end_nodes(
    session: Session, catalog: Catalog, ends: Iterable[NodeEnd], rows: Iterable[Sequence[Any]] | None = None
) -> News:
    """Count nodes that are over, let go what waited for them, and end runs that have nothing left.

    `rows` are their runs, if they are locked already.
    """
    by_run: dict[int, list[End]] = {}
    items: list[tuple[int, int, TaskState]] = []
    for end in ends:
        own = by_run.setdefault(end.run_id, [])
        if end.task_id == end.run_id + 1 + end.node_no:
            own.append((end.node_no, end.state))
        else:
            items.append((end.run_id, end.node_no, end.state))
    runs = await (lock_runs(session, catalog, by_run) if rows is None else locked(session, catalog, rows))
    for run in runs:
        run.ends = by_run[run.row.run_id]
        run.left = len(run.ends)
    if items:
        await count_items(session, catalog, runs, items)
    return await advance(session, catalog, runs)


async def advance(session: Session, catalog: Catalog, runs: Sequence[LockedRun]) -> News:
    """Follow the ends of locked runs wave by wave, then write everything in one statement."""
    moving = [run for run in runs if run.ends or run.progress.ready]
    while moving:
        await _read_rows(session, moving)
        for run in moving:
            ends, run.ends = run.ends, []
            run.tell_ends(ends)
            if run.row.is_canceled:
                run.progress.close(ends)
            else:
                run.ends = run.progress.count(ends)
                await _start_ready(session, catalog, run)
        moving = [run for run in moving if run.ends or await _take_up_held(session, run)]
    return await _write(session, catalog, runs)


async def take_up_all(session: Session, catalog: Catalog, run: LockedRun) -> None:
    """Let go whatever a pause held back, items and nodes, but what is in hand already; an `advance` follows."""
    await let_items_go(session, catalog, run)
    for row in await session.fetch(_HELD_NODES, run.row.run_id, EVERY):
        if row["node_no"] not in run.progress.rows:
            run.progress.rows[row["node_no"]] = NodeRow(*row)
            run.progress.ready.append(row["node_no"])


async def _take_up_held(session: Session, run: LockedRun) -> bool:
    """Let nodes go that a run with a limit held back, as far as there is room again."""
    if not (room := run.room()):
        return False
    rows = run.progress.rows
    held = {node_no for node_no, row in rows.items() if row.state == HELD}
    # More than there is room for: some of them are known here already, and maybe let go a moment ago.
    for row in await session.fetch(_HELD_NODES, run.row.run_id, room + len(rows)):
        if row["node_no"] not in rows:
            rows[row["node_no"]] = NodeRow(*row)
            held.add(row["node_no"])
    run.progress.ready += sorted(held)[:room]
    return bool(run.progress.ready)


async def _start_ready(session: Session, catalog: Catalog, run: LockedRun) -> None:
    """Start the nodes let go, unless a condition skips them or the run holds them back."""
    ready, run.progress.ready = run.progress.ready, []
    plan = run.snapshot.plan
    for node_no in ready:
        if plan.is_simple[node_no]:
            if run.admit(node_no):
                run.start_task(node_no)
        elif await fails_condition(session, catalog, run, node_no):
            run.ends.append(run.progress.skip(node_no))
        elif not run.admit(node_no):
            continue
        elif plan.is_task[node_no]:
            run.start_task(node_no)
        elif (end := await start_special(session, catalog, run, node_no)) is not None:
            run.left += 1
            run.ends.append(end)
        else:
            run.told.append((node_no, "task.started"))


async def _read_rows(session: Session, runs: Sequence[LockedRun]) -> None:
    """Read what is remembered of the nodes that the ends concern."""
    asked = [(run, unknown) for run in runs if (unknown := run.progress.unknown(run.ends))]
    if not asked:
        return
    pairs = [(run.row.run_id, node_no) for run, unknown in asked for node_no in unknown]
    found: dict[int, dict[int, NodeRow]] = {}
    for row in await session.fetch(_READ_NODES, [run_id for run_id, _ in pairs], [node_no for _, node_no in pairs]):
        run_id, *columns = row
        found.setdefault(run_id, {})[columns[0]] = NodeRow(*columns)
    for run, unknown in asked:
        run.progress.know(unknown, found.get(run.row.run_id, {}))


async def _write(session: Session, catalog: Catalog, runs: Sequence[LockedRun]) -> News:
    uncounted = set[int]().union(*(run.lanes for run in runs))
    waits = set[int]().union(*(run.waits for run in runs))
    if not (runs := [run for run in runs if run.has_changed()]):
        return News(uncounted, [], [], waits)
    changed = [(run, run.progress.rows[node_no]) for run in runs for node_no in run.progress.changed]
    nodes = [(run, row) for run, row in changed if row.state in WRITTEN_HERE]
    if len(nodes) < len(changed):
        counts = (_node_columns(run, row) for run, row in changed if row.state not in WRITTEN_HERE)
        await session.fetch(_KEEP_COUNTS, *_columns(6, ((*one[:2], *one[4:8]) for one in counts)))
    going = [run for run in runs if run.tasks]
    policy_ids = {run.snapshot.policy_ids[node_no] for run in going for node_no in run.tasks}
    await catalog.learn((), policy_ids, session=session)
    row = await session.fetchrow(
        _ADVANCE_RUNS,
        *_columns(10, (_node_columns(run, row) for run, row in nodes)),
        *_columns(11, (span for run in going for span in _spans(catalog, run))),
        *_columns(5, (_run_columns(run) for run in runs)),
        *_columns(4, (_event_columns(run, node_no, kind) for run in runs for node_no, kind in run.told)),
    )
    counted = Counter(run.snapshot.lane_ids[node_no] for run in going for node_no in run.tasks)
    return News(
        uncounted | counted.keys(),
        row["awaited"] or [],
        row["children"] or [],
        waits,
        {lane_id: count for lane_id, count in counted.items() if lane_id not in uncounted},
    )


def _columns(width: int, rows: Iterable[tuple[Any, ...]]) -> Sequence[list[Any] | None]:
    # Null instead of an empty array: most are empty at a hop of a chain, and each costs the driver microseconds.
    return [list(column) for column in zip(*rows, strict=True)] or [None] * width


def _node_columns(run: LockedRun, row: NodeRow) -> tuple[Any, ...]:
    counts = (row.pending, row.succeeded, row.skipped, row.failed)
    return (run.row.run_id, row.node_no, run.row.tenant_id, row.state, *counts, row.attempt, row.generation)


def _spans(catalog: Catalog, run: LockedRun) -> Iterator[tuple[Any, ...]]:
    """The tasks that go, as spans of neighbours that are alike: a fan of thousands is one."""
    snapshot, rows = run.snapshot, run.progress.rows
    lane_ids, policy_ids, priorities = snapshot.lane_ids, snapshot.policy_ids, snapshot.priorities
    first = last = run.tasks[0]
    alike: tuple[int, ...] | None = None
    for node_no in run.tasks:
        remembered = rows.get(node_no)
        attempt, generation = (0, 1) if remembered is None else (remembered.attempt, remembered.generation)
        kind = (lane_ids[node_no], policy_ids[node_no], priorities[node_no], attempt, generation)
        if kind == alike and node_no == last + 1:
            last = node_no
            continue
        if alike is not None:
            yield _span(catalog, run, first, last, *alike)
        first, last, alike = node_no, node_no, kind
    if alike is not None:
        yield _span(catalog, run, first, last, *alike)


def _span(
    catalog: Catalog,
    run: LockedRun,
    first: int,
    last: int,
    lane_id: int,
    policy_id: int,
    priority: int,
    attempt: int,
    generation: int,
) -> tuple[Any, ...]:
    row, policy = run.row, catalog.policy(policy_id)
    given = priority if row.priority is None else row.priority
    where = (row.run_id, first, last, row.tenant_id, lane_id, policy_id)
    return (*where, given, policy.max_retries, policy.max_losses, attempt, generation)


def _event_columns(run: LockedRun, node_no: int, kind: str) -> tuple[int, str, int, int]:
    remembered = run.progress.rows.get(node_no)
    attempt = 0 if remembered is None else remembered.attempt
    return (run.row.tenant_id, kind, run.row.run_id + 1 + node_no, attempt)


def _run_columns(run: LockedRun) -> tuple[int, int, int, int, int]:
    progress = run.progress
    return (run.row.run_id, progress.ended, run.left, run.activated, progress.failed)
