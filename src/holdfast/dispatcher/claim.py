"""Claim: choose lanes from cached heads, then take tasks in one statement.

`Claimer` belongs to one worker. Its heads may be stale: the statement finds less, and the next look is fresh. Limited
queues are counted under a lock that ends with the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.selection import Head, Take, plan
from holdfast.dispatcher.leases import Claimed
from holdfast.errors import Conflict, NotFound
from holdfast.store.database import Session
from holdfast.store.statements import sql

_HEADS = sql("heads")
_CLAIM = sql("claim")
_CLAIM_TASK = sql("claim_task")
_WHY_NOT = sql("why_not_claimable")
_HELD_BY = sql("held_by")
_LOCK_LIMIT = sql("lock_limit")
_ROOM = sql("room")
_SPEND_STARTS = sql("spend_starts")
_FIND_WINNER = sql("find_winner")

HEADS_SECONDS_MAX = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """Who claims, and what it is able to run. `queues` None means every queue."""

    worker_id: int
    actions: list[str]
    queues: list[str] | None
    lease_seconds: float


class Claimer:
    """One worker's view of where work is."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.identity = identity
        self._heads: list[Head] = []
        self._limited: dict[int, int] = {}
        self._seen_at = float("-inf")
        self._turn = 0

    def forget(self) -> None:
        """A wake-up came: look again at the next claim."""
        self._seen_at = float("-inf")

    async def claim(self, session: Session, want: int, *, now: float) -> list[Claimed]:
        """Take at most `want` tasks. `now` is the worker's monotonic clock; it only ages the cached heads."""
        if now - self._seen_at > HEADS_SECONDS_MAX:
            await self._look(session, now)
            return await self._take_all(session, want)
        claimed = await self._take_all(session, want)
        if len(claimed) < want:
            await self._look(session, now)
            claimed += await self._take_all(session, want - len(claimed))
        return claimed

    async def _look(self, session: Session, now: float) -> None:
        rows = await session.fetch(_HEADS, self.identity.actions, self.identity.queues)
        self._heads = [Head(lane_id=row[0], priority=row[1], task_id=row[2]) for row in rows]
        self._limited = {row[0]: row[3] for row in rows if row[4]}
        self._seen_at = now

    async def _take_all(self, session: Session, want: int) -> list[Claimed]:
        """Ask head after head until enough is taken or every head has been asked in vain."""
        claimed: list[Claimed] = []
        while self._heads and len(claimed) < want:
            self._turn += 1
            takes = plan(self._heads, want - len(claimed), turn=self._turn)
            if self._limited:
                async with session.transaction():
                    got = await self._fetch(session, await self._within_limits(session, takes))
            else:
                got = await self._fetch(session, takes)
            claimed += got
            if len(got) < sum(take.count for take in takes):
                asked = {(take.lane_id, take.priority) for take in takes}
                self._heads = [head for head in self._heads if (head.lane_id, head.priority) not in asked]
                self.forget()
        return claimed

    async def _fetch(self, session: Session, takes: Sequence[Take]) -> list[Claimed]:
        if not takes:
            return []
        rows = await session.fetch(
            _CLAIM,
            [take.lane_id for take in takes],
            [take.priority for take in takes],
            [take.floor for take in takes],
            [take.count for take in takes],
            self.identity.worker_id,
            self.identity.lease_seconds,
        )
        return [Claimed(*row) for row in rows]

    async def _within_limits(self, session: Session, takes: Sequence[Take]) -> list[Take]:
        """Cut the plan to what limited queues allow now. Locks in queue order, so claimers never deadlock."""
        rooms: dict[int, int] = {}
        for queue_id in sorted({self._limited[take.lane_id] for take in takes if take.lane_id in self._limited}):
            await session.fetch(_LOCK_LIMIT, queue_id)
            row = await session.fetchrow(_ROOM, queue_id)
            rooms[queue_id] = _room(row)
        allowed, spent = [], dict.fromkeys(rooms, 0)
        for take in takes:
            limited = self._limited.get(take.lane_id)
            count = take.count if limited is None else min(take.count, rooms[limited] - spent[limited])
            if count > 0:
                allowed.append(replace(take, count=count))
                if limited is not None:
                    spent[limited] += count
        return await self._spend(session, allowed, spent)

    async def _spend(self, session: Session, takes: list[Take], spent: dict[int, int]) -> list[Take]:
        for queue_id, count in sorted(spent.items()):
            if count:
                await session.fetch(_SPEND_STARTS, queue_id, float(count))
        return takes


def _room(row: Any) -> int:
    rooms = [room for room in (row["running_room"], row["starts_room"]) if room is not None]
    return max(0, min(rooms, default=0))


async def claim_task(session: Session, identity: WorkerIdentity, task_id: int) -> Claimed:
    """Take one named task, or say why it cannot be taken (`Conflict` with `reason`, `NotFound`)."""
    blocked = await session.fetchrow(_WHY_NOT, task_id, identity.worker_id)
    if blocked is not None and blocked["is_limited"]:
        await session.fetch(_LOCK_LIMIT, blocked["queue_id"])
        if _room(await session.fetchrow(_ROOM, blocked["queue_id"])) == 0:
            raise _refusal(task_id, "at_limit")
        await session.fetch(_SPEND_STARTS, blocked["queue_id"], 1.0)
    row = await session.fetchrow(_CLAIM_TASK, task_id, identity.worker_id, identity.lease_seconds)
    if row is not None:
        return Claimed(*row)
    blocked = await session.fetchrow(_WHY_NOT, task_id, identity.worker_id)
    if blocked is not None:
        raise _refusal(task_id, _reason(blocked))
    winner = await session.fetchrow(_FIND_WINNER, task_id)
    if winner is None:
        raise NotFound(f"There is no task {task_id}.", code="task_not_found")
    raise _refusal(task_id, {"c": "completed", "f": "failed", "x": "canceled"}[winner["state"]])


def _reason(blocked: Any) -> str:
    if blocked["worker_state"] is None:
        return "unknown_worker"
    if blocked["state"] == "r":
        return "already_running" if blocked["has_valid_lease"] else "lease_expired"
    if blocked["state"] == "v":
        return "reserved"
    if blocked["state"] == "w":
        return "not_due"
    if blocked["is_paused"]:
        return "paused"
    return "worker_not_active" if blocked["worker_state"] != "active" else "already_running"


def _refusal(task_id: int, reason: str) -> Conflict:
    return Conflict(f"Task {task_id} cannot be claimed: {reason}.", code="not_claimable", reason=reason)


async def held_by(session: Session, identity: WorkerIdentity, known: Iterable[Any]) -> list[Claimed]:
    """Leases this worker has and does not know of, because the answer to a claim was lost on the way.

    `known` are the tokens of every lease it has heard of, also of attempts that ended and are not settled yet.
    """
    rows = await session.fetch(_HELD_BY, identity.worker_id, list(known), identity.lease_seconds)
    return [Claimed(*row) for row in rows]
