"""A run that this transaction has locked: its row, its progress, and the changes to write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.flows.progress import HELD, RELEASED, End, Progress
from holdfast.core.tasks.states import TaskState
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.flows import runs as runs_sql


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """The row of a locked run. The fields are in the order of the statement `lock_runs`."""

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
    """The changes that this transaction makes to one locked run."""

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
        """Nodes whose task completed and that are not counted yet. Their numbers suffice: most ends are completions."""
        self.ends: list[End] = []
        """Other ended nodes that are not counted yet."""
        self.left = 0
        """How many active nodes ended."""
        self.activated = 0
        """How many nodes became active."""
        self.tasks: list[int] = []
        """The activated nodes that become a task."""
        self.lanes: set[int] = set()
        """Lanes that got tasks other than `tasks`: items and tasks of child runs."""
        self.waits: set[int] = set()
        """Runs in which a node began to wait for an event that may have arrived before: this run, or a child run."""
        self.told: list[tuple[int, str]] = []
        """Events of nodes that no other statement records: the node and the kind of event."""

    def admit(self, node_no: int) -> bool:
        """Admit a node, or hold it back while the run is paused or at its limit. Return whether it may start."""
        limit = self.row.max_active
        is_full = limit is not None and self.row.active - self.left + self.activated >= limit
        if self.row.is_paused or is_full:
            self.progress.mark(node_no, HELD)
            return False
        self.activated += 1
        return True

    def start_all(self, ready: list[int]) -> bool:
        """Start all these nodes as tasks, if none can be held back or skipped, as in nearly every fan-out. Return
        whether it did."""
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
        """Start a node as a task, and mark it as released if it was held back."""
        self.tasks.append(node_no)
        if node_no in self.progress.rows:
            self.progress.mark(node_no, RELEASED)

    def has_changed(self) -> bool:
        """Return whether there is anything to write. The end of an item, for example, is counted at its node alone."""
        progress = self.progress
        return bool(progress.changed or progress.ended or self.tasks or self.told or self.left or self.activated)

    def publish_ends(self, ends: list[End]) -> None:
        """Record events for ended nodes that the settling statement did not record itself."""
        is_task = self.snapshot.plan.is_task
        for node_no, state in ends:
            if not is_task[node_no] or state in (TaskState.SKIPPED, TaskState.UPSTREAM_FAILED):
                self.told.append((node_no, f"task.{state}"))

    def room(self) -> int:
        """Return how many more nodes may start in a run that has a limit."""
        if self.row.max_active is None or self.row.is_paused or self.row.is_canceled:
            return 0
        return max(0, self.row.max_active - self.row.active + self.left - self.activated)


async def lock_runs(session: Session, catalog: Catalog, run_ids: Iterable[int]) -> list[LockedRun]:
    """Lock open runs, in the global lock order."""
    return await locked(session, catalog, await runs_sql.lock_runs(session, list(run_ids)))


async def locked(session: Session, catalog: Catalog, found: Iterable[Sequence[Any]]) -> list[LockedRun]:
    """Return runs that this transaction has locked, from the columns of the statement `lock_runs`."""
    rows = [RunRow(*row[:-2], *map(bool, row[-2:])) for row in found]
    await catalog.flows.learn({row.snapshot_id for row in rows}, session)
    return [LockedRun(row, catalog.flows.snapshot(row.snapshot_id)) for row in rows]
