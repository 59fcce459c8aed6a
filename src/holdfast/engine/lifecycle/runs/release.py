"""Release: advance runs after nodes ended, in the transaction that ended them.

Under the locks of their runs: update the counters of downstream nodes, enqueue the tasks that are ready, and end a run
with its last node. The lock order is task, run, node; one transaction at a time changes the graph of a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.core.flows.progress import BLOCKED, HELD, RELEASED, SKIPPED, UPSTREAM_FAILED, End, NodeRow
from holdfast.core.tasks.states import TaskState
from holdfast.engine.lifecycle.runs.conditions import fails_condition
from holdfast.engine.lifecycle.runs.items import NO_LIMIT, count_items, release_items
from holdfast.engine.lifecycle.runs.locked_run import LockedRun, lock_runs, locked
from holdfast.engine.lifecycle.runs.taskless_nodes import start_taskless
from holdfast.engine.notifications import Notifications
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.sql.flows import runs as runs_sql

WRITTEN_HERE = frozenset({BLOCKED, HELD, RELEASED, SKIPPED, UPSTREAM_FAILED})
"""Node states that are written at the end of an advance; the others are written when the node begins or ends."""


NodeEnd = tuple[int, int, int, TaskState]
"""An ended task of a run: task id, run id, node number and final state. A plain tuple, because thousands of them are
read from columns."""


async def end_nodes(
    session: Session, catalog: Catalog, ends: Iterable[NodeEnd], rows: Iterable[Sequence[Any]] | None = None
) -> Notifications:
    """Count ended nodes, release the nodes that waited for them, and end runs that have no nodes left.

    `rows` are the runs of these nodes, if they are locked already.
    """
    completed: defaultdict[int, list[int]] = defaultdict(list)
    others: defaultdict[int, list[End]] = defaultdict(list)
    items: list[tuple[int, int, TaskState]] = []
    for task_id, run_id, node_no, state in ends:
        if task_id != run_id + 1 + node_no:
            items.append((run_id, node_no, state))
        elif state is TaskState.COMPLETED:
            completed[run_id].append(node_no)
        else:
            others[run_id].append((node_no, state))
    run_ids = completed.keys() | others.keys() | {run_id for run_id, _, _ in items}
    runs = await (lock_runs(session, catalog, run_ids) if rows is None else locked(session, catalog, rows))
    for run in runs:
        run.completed, run.ends = completed[run.row.run_id], others[run.row.run_id]
        run.left = len(run.completed) + len(run.ends)
    if items:
        await count_items(session, catalog, runs, items)
    return await advance(session, catalog, runs)


async def advance(session: Session, catalog: Catalog, runs: Sequence[LockedRun]) -> Notifications:
    """Process the ended nodes of locked runs wave by wave, then write all changes in one statement."""
    moving = [run for run in runs if run.completed or run.ends or run.progress.ready]
    while moving:
        await _read_rows(session, moving)
        for run in moving:
            completed, ends = run.completed, run.ends
            run.completed, run.ends = [], []
            run.publish_ends(ends)
            if run.row.is_canceled:
                run.progress.close(completed, ends)
            else:
                run.ends = run.progress.count(completed, ends)
                await _start_ready(session, catalog, run)
        moving = [run for run in moving if run.ends or await _take_up_held(session, run)]
    return await _write(session, catalog, runs)


async def take_up_all(session: Session, catalog: Catalog, run: LockedRun) -> None:
    """Release the items and nodes that a pause held back, except nodes that are already loaded. The caller then calls
    `advance`."""
    await release_items(session, catalog, run)
    for row in await runs_sql.held_nodes(session, run.row.run_id, NO_LIMIT):
        if row.node_no not in run.progress.rows:
            run.progress.rows[row.node_no] = NodeRow(*row)
            run.progress.ready.append(row.node_no)


async def _take_up_held(session: Session, run: LockedRun) -> bool:
    """Release nodes that were held back by the run's limit, as far as there is capacity again."""
    if not (room := run.room()):
        return False
    rows = run.progress.rows
    held = {node_no for node_no, row in rows.items() if row.state == HELD}
    # Read more rows than there is capacity for: some nodes are already loaded, and may have just been released.
    for row in await runs_sql.held_nodes(session, run.row.run_id, room + len(rows)):
        if row.node_no not in rows:
            rows[row.node_no] = NodeRow(*row)
            held.add(row.node_no)
    run.progress.ready += sorted(held)[:room]
    return bool(run.progress.ready)


async def _start_ready(session: Session, catalog: Catalog, run: LockedRun) -> None:
    """Start the released nodes, unless a condition skips them or the run holds them back."""
    ready, run.progress.ready = run.progress.ready, []
    if run.start_all(ready):
        return
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
        elif (end := await start_taskless(session, catalog, run, node_no)) is not None:
            run.left += 1
            run.ends.append(end)
        else:
            run.told.append((node_no, "task.started"))


async def _read_rows(session: Session, runs: Sequence[LockedRun]) -> None:
    """Read the stored state of the nodes that the ends affect."""
    asked = [(run, unknown) for run in runs if (unknown := run.progress.unknown(run.completed, run.ends))]
    if not asked:
        return
    pairs = [(run.row.run_id, node_no) for run, unknown in asked for node_no in unknown]
    found: dict[int, dict[int, NodeRow]] = {}
    for row in await runs_sql.read_nodes(session, [run_id for run_id, _ in pairs], [node_no for _, node_no in pairs]):
        found.setdefault(row[0], {})[row[1]] = NodeRow(*row[1:])
    for run, unknown in asked:
        run.progress.know(unknown, found.get(run.row.run_id, {}))


async def _write(session: Session, catalog: Catalog, runs: Sequence[LockedRun]) -> Notifications:
    uncounted = set[int]().union(*(run.lanes for run in runs))
    waits = set[int]().union(*(run.waits for run in runs))
    if not (runs := [run for run in runs if run.has_changed()]):
        return Notifications(uncounted, [], [], waits)
    changed = [(run, run.progress.rows[node_no]) for run in runs for node_no in run.progress.changed]
    nodes = [(run, row) for run, row in changed if row.state in WRITTEN_HERE]
    if len(nodes) < len(changed):
        counts = (_node_columns(run, row) for run, row in changed if row.state not in WRITTEN_HERE)
        await runs_sql.store_node_counts(session, *_columns(6, ((*one[:2], *one[4:8]) for one in counts)))
    spans = [span for run in runs if run.tasks for span in _spans(run)]
    await catalog.learn((), {span.policy_id for span in spans}, session=session)
    row = await runs_sql.advance_runs(
        session,
        *_columns(10, (_node_columns(run, row) for run, row in nodes)),
        *_columns(11, (_span_columns(catalog, span) for span in spans)),
        *_columns(5, (_run_columns(run) for run in runs)),
        *_columns(4, (_event_columns(run, node_no, kind) for run in runs for node_no, kind in run.told)),
    )
    counted: Counter[int] = Counter()
    for span in spans:
        counted[span.lane_id] += span.last - span.first + 1
    return Notifications(
        uncounted | counted.keys(),
        row.awaited or [],
        row.children or [],
        waits,
        {lane_id: count for lane_id, count in counted.items() if lane_id not in uncounted},
    )


def _columns(width: int, rows: Iterable[tuple[Any, ...]]) -> Sequence[Any]:
    # Pass null instead of an empty array: in a chain most are empty, and each costs the driver microseconds.
    return [list(column) for column in zip(*rows, strict=True)] or [None] * width


def _node_columns(run: LockedRun, row: NodeRow) -> tuple[Any, ...]:
    counts = (row.pending, row.succeeded, row.skipped, row.failed)
    return (run.row.run_id, row.node_no, run.row.tenant_id, row.state, *counts, row.attempt, row.generation)


class _Span(NamedTuple):
    """Consecutive nodes that become equal tasks; a fan-out of thousands is one span."""

    run: LockedRun
    first: int
    last: int
    lane_id: int
    policy_id: int
    priority: int
    attempt: int
    generation: int


def _spans(run: LockedRun) -> Iterator[_Span]:
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
            yield _Span(run, first, last, *alike)
        first, last, alike = node_no, node_no, kind
    if alike is not None:
        yield _Span(run, first, last, *alike)


def _span_columns(catalog: Catalog, span: _Span) -> tuple[Any, ...]:
    row, policy = span.run.row, catalog.policy(span.policy_id)
    priority = span.priority if row.priority is None else row.priority
    where = (row.run_id, span.first, span.last, row.tenant_id, span.lane_id, span.policy_id)
    return (*where, priority, policy.max_retries, policy.max_losses, span.attempt, span.generation)


def _event_columns(run: LockedRun, node_no: int, kind: str) -> tuple[int, str, int, int]:
    remembered = run.progress.rows.get(node_no)
    attempt = 0 if remembered is None else remembered.attempt
    return (run.row.tenant_id, kind, run.row.run_id + 1 + node_no, attempt)


def _run_columns(run: LockedRun) -> tuple[int, int, int, int, int]:
    progress = run.progress
    return (run.row.run_id, progress.ended, run.left, run.activated, progress.failed)


async def warm_release(session: Session) -> None:
    """Prepare the release statements by releasing nothing."""
    await runs_sql.read_nodes(session, [], [])
    await runs_sql.advance_runs(session, *[None] * 30)
