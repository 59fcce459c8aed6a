"""Claim tasks: choose lanes from cached lane heads, then claim in one statement.

A `Claimer` belongs to one worker. Its cached heads may be stale: then the statement finds fewer tasks, and the next
query refreshes them. Limited queues and actions on trial are counted under a lock that ends with the transaction.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.tasks import floors
from holdfast.core.tasks.selection import Gate, LaneHead, Row, Take, plan, plan_within, short_of
from holdfast.engine.leases import Claimed
from holdfast.engine.limits.breakers import trial_rooms
from holdfast.store.database import Session
from holdfast.store.sql.identity import tenants as tenants_sql
from holdfast.store.sql.limits import guards as guards_sql
from holdfast.store.sql.tasks import claim as claim_sql

HEADS_SECONDS_MAX = 0.2
UNSEEN_MAX = 32
"""How many times in a row a worker claims from notified lanes without a query of all lanes."""
HELD_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """The worker that claims, and the actions and queues that it serves. `queues` None means every queue."""

    worker_id: int
    actions: list[str]
    queues: list[str] | None
    lease_seconds: float


class Claimer:
    """One worker's cache of the lanes that have claimable tasks."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.identity = identity
        self.may_have_more = True
        self.has_plenty = False
        """Whether the last claim got all it wanted, so more tasks may be queued."""
        self.has_missed = False
        """Whether the last query returned tasks that could not be claimed, because other transactions have locked the
        row or its limit. Their release may send no notification, so the worker has to query again soon."""
        self._heads: list[LaneHead] = []
        self._usual: dict[int, int] = {}
        self.guarded: set[int] = set()
        self._gates: dict[int, list[Gate]] = {}
        self._shared: set[int] = set()
        self._seen_at = float("-inf")
        self._unseen = 0
        self._floors: dict[Row, int] = {}
        """Where this worker stopped in each lane, while queries of all lanes are slow: below, it found or left no
        task."""
        self._sweep_at = float("-inf")
        self._slow_looks = 0
        # Workers that claim one task and exit also start at different lanes, so that together they serve all of them.
        self._slot = identity.worker_id

    def forget(self) -> None:
        """Expire the cached heads, so that the next claim queries again."""
        self._seen_at = float("-inf")

    def expect(self, lanes: Sequence[int], *, now: float) -> None:
        """Cache the lanes that a notification named, at their last known priority, so that the next claim needs no
        query.

        A wrong guess finds nothing, and the query follows; a right one saves an idle worker a round trip. A worker with
        plenty to do skips this, and after `UNSEEN_MAX` guesses in a row the next claim queries all lanes, so that the
        others are served too.
        """
        if self._is_fresh(now) and self._add(lanes):
            return
        self.forget()
        expected = self._expected(lanes)
        if expected and not self._gates and not self.has_plenty and self._unseen < UNSEEN_MAX:
            self._heads, self._seen_at = expected, now
            self._unseen += 1

    def hear(self, lanes: Iterable[int], *, now: float) -> None:
        """Add lanes that got tasks in this very transaction to the cached heads."""
        if self._is_fresh(now):
            self._add(lanes)
        else:
            self.expect(list(lanes), now=now)

    def _is_fresh(self, now: float) -> bool:
        return now - self._seen_at <= HEADS_SECONDS_MAX

    def _add(self, lanes: Iterable[int]) -> bool:
        """Add lanes to the cached heads. Return False if none of them ever had a task for this worker."""
        expected = self._expected(lanes)
        known = {head.lane_id for head in self._heads}
        if not self._gates:
            self._heads += [head for head in expected if head.lane_id not in known]
        return bool(expected)

    def _expected(self, lanes: Iterable[int]) -> list[LaneHead]:
        return [LaneHead(lane_id=one, priority=self._usual[one], task_id=0) for one in lanes if one in self._usual]

    async def claim(self, session: Session, want: int, *, now: float) -> list[Claimed]:
        """Claim at most `want` tasks. `now` is the worker's monotonic clock; it only ages the cached heads.

        Tasks found through cached heads are returned at once, so that they start; the next claim finds out whether
        there are more.
        """
        if claimed := await self.claim_known(session, want, now=now):
            await self.count_starts(session, claimed)
            return claimed
        await self._look(session, now)
        self.has_missed = False
        claimed = await self._take_looked(session, want)
        self.may_have_more = self.has_plenty = len(claimed) == want
        await self.count_starts(session, claimed)
        return claimed

    async def claim_known(self, session: Session, want: int, *, now: float) -> list[Claimed]:
        """Claim from cached heads only: no query of the lanes, and no wait for a lock. The caller then calls
        `count_starts`."""
        self.may_have_more = True
        if want == 0 or self._gates or not self._is_fresh(now):
            return []
        claimed = await self._take(session, want, {})
        self.has_plenty, self.has_missed = len(claimed) == want, False
        return claimed

    async def _take_looked(self, session: Session, want: int) -> list[Claimed]:
        if not self._gates:
            return await self._take(session, want, {})
        if session.is_in_transaction():
            return await self._take_gated(session, want)
        async with session.transaction():
            return await self._take_gated(session, want)

    async def count_starts(self, session: Session, claimed: Sequence[Claimed]) -> None:
        """Count first attempts for quotas that allow retries as a share of them. A crash before this loses a little of
        the share."""
        if self._shared:
            firsts = (one.lane_id for one in claimed if one.lane_id in self._shared and is_first(one))
            await tally_starts(session, firsts)

    async def _look(self, session: Session, now: float) -> None:
        rows = await self._look_above(session) if now < self._sweep_at else await self._look_at_all(session, now)
        self._heads = _first_of_each(head for row in rows for head in _heads_in(row))
        if self._sweep_at > now:
            self._floors |= {head.row: head.task_id for head in self._heads}
        self._gates = {row.lane_id: gates for row in rows if (gates := _gates_in(row))}
        self.guarded = {row.lane_id for row in rows if row.breaker_id is not None}
        self._shared = {row.lane_id for row in rows if row.is_shared}
        for head in sorted(self._heads, key=lambda head: head.priority, reverse=True):
            self._usual[head.lane_id] = head.priority
        self._seen_at = now
        self._unseen = 0

    async def _look_at_all(self, session: Session, now: float) -> Sequence[claim_sql.LaneHeadsRow]:
        began = time.perf_counter()
        rows = await claim_sql.lane_heads(session, self.identity.actions, self.identity.queues, self.identity.worker_id)
        self._floors.clear()
        took = time.perf_counter() - began
        self._slow_looks = floors.slow_scans(self._slow_looks, took)
        self._sweep_at = now + floors.sweep_seconds(took) if self._slow_looks >= floors.SLOW_SCANS else now
        return rows

    async def _look_above(self, session: Session) -> Sequence[claim_sql.LaneHeadsFromRow]:
        parts = floors.parts_above(self._floors)
        columns = [list(column) for column in zip(*parts, strict=True)] if parts else [[], [], [], [], []]
        identity = self.identity
        return await claim_sql.lane_heads_from(session, identity.actions, identity.queues, identity.worker_id, *columns)

    def _raise_floors(self, rows: Sequence[claim_sql.ClaimRow]) -> None:
        """Move the floors past the claimed tasks, so that the next claim and the next query begin there."""
        for row in rows:
            place = (row.lane_id, row.priority, row.run_id is not None)
            if place in self._floors:
                self._floors[place] = max(self._floors[place], row.task_id)
        self._heads = [
            head
            if self._floors.get(head.row, 0) <= head.task_id
            else LaneHead(
                lane_id=head.lane_id,
                priority=head.priority,
                task_id=self._floors[head.row],
                is_node=head.is_node,
            )
            for head in self._heads
        ]

    async def _take(self, session: Session, want: int, rooms: dict[Gate, int]) -> list[Claimed]:
        """Claim from head after head until enough tasks are claimed or no head is left. Decrements `rooms`."""
        claimed: list[Claimed] = []
        heads, found = self._heads, set[Row]()
        while self._heads and len(claimed) < want:
            left = want - len(claimed)
            takes = allowed = plan(self._heads, left, slot=self._slot)
            if rooms:
                allowed = plan_within(self._heads, left, slot=self._slot, gates=self._gates, rooms=rooms)
            rows = await self._fetch(session, allowed, rooms)
            # A node's input is null here; inputs.py builds it from its run.
            claimed += [Claimed(*row[:-1]) for row in rows]  # type: ignore[arg-type]
            found.update(_row_of(row) for row in rows)
            # A slot whose lane had no task is offered again.
            self._slot += len(rows)
            if self._floors:
                self._raise_floors(rows)
            if len(rows) < left:
                self._drop_spent(takes, rows, rooms)
        if len(claimed) < want:
            open_heads = (one for one in heads if all(rooms.get(gate) for gate in self._gates.get(one.lane_id, ())))
            self.has_missed = self.has_missed or any(one.row not in found for one in open_heads)
        return claimed

    def _drop_spent(self, takes: Sequence[Take], rows: Sequence[claim_sql.ClaimRow], rooms: dict[Gate, int]) -> None:
        """Drop the heads that gave less than requested or had no capacity left."""
        taken = Counter(map(_row_of, rows))
        for (lane_id, _, _), count in taken.items():
            for gate in self._gates.get(lane_id, ()):
                rooms[gate] -= count
        spent = short_of(takes, taken)
        self._heads = [head for head in self._heads if head.row not in spent]
        self.forget()

    async def _fetch(
        self, session: Session, takes: Sequence[Take], rooms: Mapping[Gate, int]
    ) -> Sequence[claim_sql.ClaimRow]:
        """Return the claimed rows: the fields of `Claimed`, each followed by its priority."""
        if not takes:
            return []
        return await claim_sql.claim(
            session,
            [take.lane_id for take in takes],
            [take.priority for take in takes],
            [take.floor for take in takes],
            [take.count for take in takes],
            self.identity.worker_id,
            self.identity.lease_seconds,
            *(
                [number for (kind, number), room in rooms.items() if kind == counted and room > 0]
                for counted in ("breaker", "queue", "tenant")
            ),
        )

    async def _take_gated(self, session: Session, want: int) -> list[Claimed]:
        """Claim while holding the locks of all limits that are free. A limit that another claimer has locked is
        skipped, so no claimer waits for another."""
        gates = {gate for closing in self._gates.values() for gate in closing}
        queue_ids = sorted(number for kind, number in gates if kind == "queue")
        breaker_ids = sorted(number for kind, number in gates if kind == "breaker")
        tenant_ids = sorted(number for kind, number in gates if kind == "tenant")
        rooms: dict[Gate, int] = {}
        if tenant_ids:
            mine = [row.tenant_id for row in await tenants_sql.try_tenants(session, tenant_ids)]
            rooms |= await _tenant_rooms(session, mine)
        if queue_ids:
            mine = [row.queue_id for row in await claim_sql.try_limits(session, queue_ids)]
            rooms |= {("queue", row.queue_id): _room(row) for row in await claim_sql.remaining_capacity(session, mine)}
        if breaker_ids:
            granted = await trial_rooms(session, breaker_ids)
            rooms |= {("breaker", number): room for number, room in granted.items()}
        self.has_missed = gates != rooms.keys()
        claimed = await self._take(session, want, dict.fromkeys(gates, 0) | rooms)
        started = Counter(
            number for one in claimed for kind, number in self._gates.get(one.lane_id, ()) if kind == "queue"
        )
        if started:
            await claim_sql.spend_starts(session, list(started.keys()), list(started.values()))
        return claimed


def _heads_in(row: claim_sql.LaneHeadsFromRow | claim_sql.LaneHeadsRow) -> list[LaneHead]:
    """Return the oldest task of a lane and priority, and the oldest node after it."""
    lane_id, priority, task_id, is_node, node_id = row[:5]
    heads = [LaneHead(lane_id=lane_id, priority=priority, task_id=task_id, is_node=is_node)]
    if node_id is not None:
        heads.append(LaneHead(lane_id=lane_id, priority=priority, task_id=node_id, is_node=True))
    return heads


def _first_of_each(heads: Iterable[LaneHead]) -> list[LaneHead]:
    """Return the oldest head of each row; a lane that was queried in parts has several."""
    found: dict[Row, LaneHead] = {}
    for head in heads:
        known = found.get(head.row)
        if known is None or head.task_id < known.task_id:
            found[head.row] = head
    return list(found.values())


def _gates_in(row: claim_sql.LaneHeadsFromRow | claim_sql.LaneHeadsRow) -> list[Gate]:
    gates: list[Gate] = [("queue", row.queue_id)] if row.is_limited else []
    gates += [("tenant", row.tenant_id)] if row.is_tenant_limited else []
    gates += [("breaker", row.breaker_id)] if row.breaker_id is not None and row.is_on_trial else []
    return gates


async def sees_work(session: Session, identity: WorkerIdentity) -> bool:
    """Return whether any task is queued that this worker may run. A claim may still fail: other workers, limits,
    trials."""
    return bool(await claim_sql.lane_heads(session, identity.actions, identity.queues, identity.worker_id))


def is_first(claimed: Claimed) -> bool:
    """Return whether this is a first attempt. An attempt that was released does not count as a retry."""
    return claimed.retries + claimed.losses == 0


async def tally_starts(session: Session, lane_ids: Iterable[int]) -> None:
    """Count first attempts per lane, for quotas that allow retries as a share of them."""
    if firsts := Counter(lane_ids):
        await guards_sql.tally_starts(session, list(firsts.keys()), list(firsts.values()))


def _row_of(row: claim_sql.ClaimRow) -> Row:
    """Return the row (lane, priority, node or not) that a task was claimed from."""
    return row.lane_id, row.priority, row.run_id is not None


async def _tenant_rooms(session: Session, tenant_ids: Sequence[int]) -> dict[Gate, int]:
    """Return how many tasks limited tenants may start, counted under locks that last until the transaction ends."""
    rows = await tenants_sql.remaining_tenant_capacity(session, tenant_ids)
    # A limit that was removed since the query has no row: the tenant is unlimited.
    found = {row.tenant_id: max(0, row.room) for row in rows}
    return {("tenant", one): found.get(one, HELD_MAX) for one in tenant_ids}


def _room(row: claim_sql.RemainingCapacityRow) -> int:
    rooms = [room for room in (row.running_room, row.starts_room) if room is not None]
    return max(0, min(rooms, default=0))


async def has_room(session: Session, found: claim_sql.WhyNotClaimableRow) -> bool:
    """Return whether a limited tenant and queue may start one more task, under their locks. `spend_room` follows the
    start."""
    if found.is_tenant_limited:
        await tenants_sql.lock_tenant_limit(session, found.tenant_id)
        rooms = await _tenant_rooms(session, [found.tenant_id])
        if rooms["tenant", found.tenant_id] == 0:
            return False
    if not found.is_limited or found.is_paused:
        return True
    await claim_sql.lock_limit(session, found.queue_id)
    (row,) = await claim_sql.remaining_capacity(session, [found.queue_id])
    return _room(row) > 0


async def spend_room(session: Session, found: claim_sql.WhyNotClaimableRow) -> None:
    """Count the start for which `has_room` found capacity."""
    if found.is_limited:
        await claim_sql.spend_starts(session, [found.queue_id], [1])


async def held_by(session: Session, identity: WorkerIdentity, known: Iterable[tuple[int, Any]]) -> list[Claimed]:
    """Return leases that this worker owns but does not know, because the response to a claim was lost.

    `known` has the task and token of every lease that the worker knows, including ended attempts that are not settled
    yet.
    """
    leases = list(known)
    rows = await claim_sql.held_by(
        session,
        identity.worker_id,
        [task_id for task_id, _ in leases],
        identity.lease_seconds,
        HELD_MAX,
        [lease_token for _, lease_token in leases],
    )
    return [Claimed.of(row) for row in rows]


async def held_task(session: Session, identity: WorkerIdentity, task_id: int) -> Claimed | None:
    """Return the lease that this worker has on one task, or None."""
    row = await claim_sql.held_task(session, task_id, identity.worker_id, identity.lease_seconds)
    return None if row is None else Claimed.of(row)


async def warm_claim(session: Session) -> None:
    """Prepare the claim statement by claiming nothing."""
    await claim_sql.claim(session, [], [], [], [], 0, 1.0, [], [], [])
