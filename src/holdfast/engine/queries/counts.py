"""Task counts per queue and state: exact where it matters, and never a scan of all rows.

A pass (`count_once`) adds up completed tasks, and the query adds the completions among later events; enqueue, claim and
settle do no counting. All other states are counted from their rows, up to a bound. A count that may be too low is
reported as partial.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.store.database import Database, Session
from holdfast.store.sql.queries import counts as counts_sql

ROUNDS_MAX = 4
GAIN_MIN = 50
"""A lane is counted again only if its share grows by more than a fiftieth, so counts are exact up to 98 % of the
bound."""
PASS_EVENTS_MIN, PASS_EVENTS_MAX = 2_000, 250_000
"""How many new events make a pass worthwhile: fewer cost a query nothing. Beyond the upper bound the exact number does
not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many rows are counted. Queued tasks are divided among lanes; the other bounds are for all queues together."""

    queued: int
    held: int
    ended: int
    events: int
    nodes: int
    runs: int


LISTED = Bounds(queued=30_000, held=10_000, ended=10_000, events=1_000_000, nodes=20_000, runs=2_000)
"""For `holdfast queue list` and its page, where completeness matters."""
GLANCED = Bounds(queued=30_000, held=10_000, ended=0, events=0, nodes=0, runs=0)
"""For `holdfast top` and `/metrics`, which read every few seconds and need no history."""


@dataclass(slots=True)
class Counts:
    """Counts by queue and state. States in `partial` may be too low for every queue, those in `partial_of` for one
    queue."""

    by_queue: dict[int, Counter[str]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    partial_of: dict[int, set[str]] = field(default_factory=dict)

    def add(self, queue_id: int, name: str, count: int) -> None:
        self.by_queue.setdefault(queue_id, Counter())[name] += count

    def of(self, queue_id: int) -> Counter[str]:
        return self.by_queue.get(queue_id, Counter())

    def short(self, queue_id: int) -> set[str]:
        """Return the states of a queue whose counts may be too low."""
        return self.partial | self.partial_of.get(queue_id, set())


async def count_queues(session: Session, tenant_id: int, bounds: Bounds, *, with_history: bool) -> Counts:
    """Count the tasks of a tenant's queues."""
    counts = Counts()
    await _count_queued(session, tenant_id, bounds.queued, counts)
    held = await counts_sql.held_counts(session, tenant_id, bounds.held)
    for row in held:
        for name in ("running", "retrying", "delayed"):
            counts.add(row.queue_id, name, getattr(row, name))
    if sum(row.running + row.retrying + row.delayed for row in held) >= bounds.held:
        counts.partial |= {"queued", "running", "retrying", "delayed"}
    if with_history:
        await _count_history(session, tenant_id, bounds, counts)
    return counts


async def _count_queued(session: Session, tenant_id: int, most: int, counts: Counts) -> None:
    """Count queued tasks lane by lane. Each lane gets a share of the bound; what small lanes do not use goes to large
    ones."""
    queue_of = {row.lane_id: row.queue_id for row in await counts_sql.busy_lanes(session, tenant_id)}
    found: dict[int, int] = {}
    full = list(queue_of)
    share = 0
    for _ in range(ROUNDS_MAX):
        more = (most - sum(found.values())) // max(1, len(full))
        if not full or (share and more * GAIN_MIN <= share):
            break
        share += max(1, more)
        found |= {row.lane_id: row.tasks for row in await counts_sql.queued_counts(session, full, share)}
        full = [lane_id for lane_id in full if found.get(lane_id, 0) >= share]
    for lane_id, tasks in found.items():
        counts.add(queue_of[lane_id], "queued", tasks)
    for lane_id in full:
        counts.partial_of.setdefault(queue_of[lane_id], set()).add("queued")


async def _count_history(session: Session, tenant_id: int, bounds: Bounds, counts: Counts) -> None:
    """Add ended and blocked tasks."""
    for row in await counts_sql.blocked_counts(session, tenant_id, bounds.nodes, bounds.runs):
        if row.queue_id is not None:
            counts.add(row.queue_id, "blocked", row.blocked)
        elif row.is_partial:
            counts.partial.add("blocked")
    for completed in await counts_sql.completed_counts(session, tenant_id, bounds.events):
        counts.add(completed.queue_id, "completed", completed.completed)
    if await counts_sql.uncounted_events(session, bounds.events) >= bounds.events:
        counts.partial.add("completed")
    totals: Counter[str] = Counter()
    for ended in await counts_sql.ended_counts(session, tenant_id, bounds.ended):
        for name, count in (("failed", ended.failed or 0), ("canceled", ended.canceled or 0)):
            counts.add(ended.queue_id, name, count)
            totals[name] += count
    counts.partial |= {name for name, total in totals.items() if total >= bounds.ended}


async def count_once(database: Database) -> bool:
    """Count the completions that no pass has counted, if there may be many. Return whether it did."""
    if not await counts_sql.counting_pays(database, PASS_EVENTS_MIN, PASS_EVENTS_MAX):
        return False
    return bool(await counts_sql.count_completed(database, False))
