"""Items of mapped nodes: a node that maps over a list runs one task per element. They are started, released and counted
here.

Item i of a node has the task id `items_first + i`. Its input is the node's input with the list replaced by its i-th
element; it is built when the task is claimed, like every other input. A paused run releases no further items, even if
its concurrency allows more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.core.tasks.states import ENDS, TaskState
from holdfast.engine.for_each_row import for_each_row
from holdfast.engine.lifecycle.runs.locked_run import LockedRun, lock_runs
from holdfast.engine.notifications import Notifications
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.flows import taskless_nodes as taskless_nodes_sql

RUNS_BATCH = 100
ITEMS_SCANNED_AHEAD = 100
"""How many items one query examines beyond the free capacity. In a rerun most items may already be completed, and are
skipped."""
NO_LIMIT = 2**31 - 1


async def begin_items(session: Session, catalog: Catalog, run: LockedRun, node_no: int, count: int) -> None:
    """Start a node as `count` tasks, at most `concurrency` of them at once. In a rerun, completed items keep their
    outputs."""
    snapshot = run.snapshot
    row = run.progress.mark(node_no, "m")
    where = (run.row.run_id, node_no, run.row.tenant_id, row.generation)
    # Read from the database, because a held-back node starts in a later transaction than the re-drive that reset it.
    reusable = (
        await taskless_nodes_sql.kept_items(session, run.row.run_id, node_no, row.generation)
        if row.generation > 1
        else None
    )
    if (
        reusable is not None
        and reusable.items == count
        and await taskless_nodes_sql.retry_items(session, *where, row.attempt, *reusable)
    ):
        await _release_node_items(session, catalog, run, node_no)
        return
    rules = await _rules(session, catalog, run, node_no)
    limit = snapshot.plan.nodes[node_no].concurrency
    first_id = await taskless_nodes_sql.take_span(session, count)
    initial_count = count if limit is None else min(limit, count)
    await taskless_nodes_sql.begin_items(session, *where, first_id, count, initial_count, *rules, row.attempt)
    run.lanes.add(snapshot.lane_ids[node_no])


async def _release_node_items(session: Session, catalog: Catalog, run: LockedRun, node_no: int) -> None:
    """Release uncompleted items up to the node's concurrency.

    Each query begins where the last one ended, so together they read every item once.
    """
    lane_id, policy_id, priority, max_retries, max_losses = await _rules(session, catalog, run, node_no)
    rules = (policy_id, priority, max_retries, max_losses)
    limit = run.snapshot.plan.nodes[node_no].concurrency or NO_LIMIT
    where = (run.row.run_id, node_no, limit, run.row.tenant_id)
    has_more = True
    while has_more:
        released = await taskless_nodes_sql.further_items(session, *where, lane_id, *rules, ITEMS_SCANNED_AHEAD)
        has_more = released is not None and released.has_more
        if released is not None and released.items:
            run.lanes.add(lane_id)


async def release_items(session: Session, catalog: Catalog, run: LockedRun) -> None:
    """Release items that a pause held back."""
    for row in await taskless_nodes_sql.unreleased_items(session, run.row.run_id):
        await _release_node_items(session, catalog, run, row.node_no)


async def cancel_unreleased_items(session: Session, catalog: Catalog, run: LockedRun) -> None:
    """Drop the unreleased items of a canceled run, and end nodes that have no running item left."""
    if nodes := [
        (run.row.run_id, row.node_no) for row in await taskless_nodes_sql.unreleased_items(session, run.row.run_id)
    ]:
        await _count(session, catalog, {run.row.run_id: run}, nodes, Counter())


async def release_stalled_items_once(database: Database, catalog: Catalog, *, limit: int = RUNS_BATCH) -> Notifications:
    """Release items of re-driven runs that no other transaction has released; at most `limit` runs."""

    async def move(session: Session, row: taskless_nodes_sql.StalledItemsRow) -> Notifications:
        runs = await lock_runs(session, catalog, [row.run_id])
        for run in runs:
            if not (run.row.is_paused or run.row.is_canceled):
                await release_items(session, catalog, run)
        return Notifications(set[int]().union(*(run.lanes for run in runs)), [], [])

    return await for_each_row(
        database, partial(taskless_nodes_sql.stalled_items, database), limit=limit, what="items", work=move
    )


async def count_items(
    session: Session, catalog: Catalog, runs: Iterable[LockedRun], ended: Sequence[tuple[int, int, TaskState]]
) -> None:
    """Count ended items, given as (run, node, end). Release further items, and end nodes with their last item."""
    by_id = {run.row.run_id: run for run in runs}
    tally = Counter((run_id, node_no, state) for run_id, node_no, state in ended if run_id in by_id)
    await _count(session, catalog, by_id, sorted({(run_id, node_no) for run_id, node_no, _ in tally}), tally)


async def _count(
    session: Session,
    catalog: Catalog,
    by_id: Mapping[int, LockedRun],
    nodes: Sequence[tuple[int, int]],
    tally: Counter[tuple[int, int, TaskState]],
) -> None:
    rows = await taskless_nodes_sql.count_items(
        session,
        [run_id for run_id, _ in nodes],
        [node_no for _, node_no in nodes],
        [sum(tally[*node, state] for state in ENDS.values()) for node in nodes],
        [tally[*node, TaskState.FAILED] for node in nodes],
        [tally[*node, TaskState.CANCELED] for node in nodes],
        [by_id[run_id].row.is_canceled for run_id, _ in nodes],
        [by_id[run_id].row.is_paused for run_id, _ in nodes],
    )
    further: list[tuple[Any, ...]] = []
    for row in rows:
        run = by_id[row.run_id]
        if row.state != "m":
            run.ends.append((row.node_no, ENDS[row.state]))
            run.left += 1
        elif row.is_canceled or row.is_paused:
            continue
        elif row.items_after is None:
            further += await _next_items(session, catalog, run, row)
        elif row.items_after < row.items:
            await _release_node_items(session, catalog, run, row.node_no)
    if further:
        await taskless_nodes_sql.release_items(session, *(list(column) for column in zip(*further, strict=True)))


async def _next_items(
    session: Session, catalog: Catalog, run: LockedRun, row: taskless_nodes_sql.CountItemsRow
) -> list[tuple[Any, ...]]:
    """Return the items that replace ended ones, where the node limits how many run concurrently."""
    node_no = row.node_no
    if row.was_next == row.items_next:
        return []
    lane_id, policy_id, priority, *budget = await _rules(session, catalog, run, node_no)
    rules = (run.row.tenant_id, lane_id, policy_id, priority, *budget, row.generation, run.row.run_id, node_no)
    run.lanes.add(lane_id)
    return [(row.items_first + i, *rules) for i in range(row.was_next, row.items_next)]


async def _rules(session: Session, catalog: Catalog, run: LockedRun, node_no: int) -> tuple[int, int, int, int, int]:
    """Return lane, policy, priority and budget of a node's tasks."""
    snapshot = run.snapshot
    policy_id = snapshot.policy_ids[node_no]
    await catalog.learn((), [policy_id], session=session)
    policy = catalog.policy(policy_id)
    priority = snapshot.priorities[node_no] if run.row.priority is None else run.row.priority
    return snapshot.lane_ids[node_no], policy_id, priority, policy.max_retries, policy.max_losses
