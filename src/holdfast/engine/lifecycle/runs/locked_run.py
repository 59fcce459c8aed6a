"""A run whose lock this transaction holds: what it is, how far it comes, and what is to be written down about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.flows.progress import HELD, RELEASED, End, Progress
from holdfast.core.tasks.states import TaskState
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.statements import sql

_LOCK_RUNS = sql("lock_runs")


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """A locked run. Fields in the order of `lock_runs`."""

    run_id: int
    snapshot_id: int
    tenant_id: int
    generation: int
    pending: int
    active: int
    failed: int
    nodes: int
    max_active: int | None
    priority: int | None
    is_paused: bool
    is_canceled: bool


class LockedRun:
    """One run in the hands of this transaction."""

    __slots__ = (
        "activated",
        "completed",
        "ends",
        "lanes",
        "left",
        "progress",
        "row",
        "snapshot",
        "tasks",
        "told",
        "waits",
    )

    def __init__(self, row: RunRow, snapshot: FlowSnapshot) -> None:
        self.row = row
        self.snapshot = snapshot
        self.progress = Progress(snapshot.plan, generation=row.generation)
        self.completed: list[int] = []
        """Nodes whose task completed, by number alone: of most ends there is nothing else to say. Not counted yet."""
        self.ends: list[End] = []
        """Other ends, not counted yet."""
        self.left = 0
        """How many nodes were active and are over."""
        self.activated = 0
        """How many nodes became active."""
        self.tasks: list[int] = []
        """Of these, the ones that become a task."""
        self.lanes: set[int] = set()
        """Lanes that got work which is not among `tasks`: items, runs of other flows."""
        self.waits: set[int] = set()
        """Runs of which a node began to wait for an event, which may have come already: this one, or one it started."""
        self.told: list[tuple[int, str]] = []
        """What happened to nodes that no statement of their own tells: the node, and the kind of event."""

    def admit(self, node_no: int) -> bool:
        """Let a node start, or hold it back while the run is paused or full."""
        limit = self.row.max_active
        is_full = limit is not None and self.row.active - self.left + self.activated >= limit
        if self.row.is_paused or is_full:
            self.progress.mark(node_no, HELD)
            return False
        self.activated += 1
        return True

    def start_all(self, ready: list[int]) -> bool:
        """Let all these nodes go as tasks, if nothing can hold back or skip any; how it is with nearly every fan."""
        is_simple, rows = self.snapshot.plan.is_simple, self.progress.rows
        if self.row.max_active is not None or self.row.is_paused or not all(is_simple[one] for one in ready):
            return False
        self.activated += len(ready)
        self.tasks += ready
        for node_no in ready if rows else ():
            if node_no in rows:
                self.progress.mark(node_no, RELEASED)
        return True

    def start_task(self, node_no: int) -> None:
        """Let a node go as a task; one that was held back is so no longer."""
        self.tasks.append(node_no)
        if node_no in self.progress.rows:
            self.progress.mark(node_no, RELEASED)

    def has_changed(self) -> bool:
        """Whether there is anything to write down: an item that ended, say, is counted at its node alone."""
        progress = self.progress
        return bool(progress.changed or progress.ended or self.tasks or self.told or self.left or self.activated)

    def tell_ends(self, ends: list[End]) -> None:
        """Note the ends that are news: a task's own end was told by the statement that settled it."""
        is_task = self.snapshot.plan.is_task
        for node_no, state in ends:
            if not is_task[node_no] or state in (TaskState.SKIPPED, TaskState.UPSTREAM_FAILED):
                self.told.append((node_no, f"task.{state}"))

    def room(self) -> int:
        """How many more nodes may start in a run that has a limit."""
        if self.row.max_active is None or self.row.is_paused or self.row.is_canceled:
            return 0
        return max(0, self.row.max_active - self.row.active + self.left - self.activated)


async def lock_runs(session: Session, catalog: Catalog, run_ids: Iterable[int]) -> list[LockedRun]:
    """Lock open runs, in the one order."""
    return await locked(session, catalog, await session.fetch(_LOCK_RUNS, list(run_ids)))


async def locked(session: Session, catalog: Catalog, found: Iterable[Sequence[Any]]) -> list[LockedRun]:
    """Runs that this transaction has locked, given as the columns of `lock_runs`."""
    rows = [RunRow(*row[:-2], *map(bool, row[-2:])) for row in found]
    await catalog.flows.learn({row.snapshot_id for row in rows}, session)
    return [LockedRun(row, catalog.flows.snapshot(row.snapshot_id)) for row in rows]
