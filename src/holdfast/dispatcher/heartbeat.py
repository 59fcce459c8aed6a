"""Heartbeat: extend leases before they expire, and learn which are lost or must stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.dispatcher.leases import Claimed
from holdfast.errors import LeaseLost
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_HEARTBEAT = sql("heartbeat")
_BEAT_WORKER = sql("beat_worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The answer: leases that go on, those lost, those asked to stop, and the worker's own state (None: unknown)."""

    renewed: frozenset[int]
    lost: frozenset[int]
    canceled: frozenset[int]
    worker_state: str | None
    crew: int = 1
    """How many workers of the same kind are present."""
    rank: int = 0
    """How many of them came before this one."""


async def heartbeat(
    session: Session, worker_id: int, leases: Mapping[int, Any], *, lease_seconds: float, health: str = "{}"
) -> Beat:
    """Renew `leases` (task id → token) of one worker."""
    rows = []
    if leases:
        rows = await session.fetch(_HEARTBEAT, list(leases.keys()), list(leases.values()), lease_seconds)
    worker = await session.fetchrow(_BEAT_WORKER, worker_id, health)
    renewed = frozenset(row["task_id"] for row in rows)
    return Beat(
        renewed=renewed,
        lost=frozenset(leases) - renewed,
        canceled=frozenset(row["task_id"] for row in rows if row["cancel_requested"]),
        worker_state=None if worker is None else worker["state"],
        crew=1 if worker is None else worker["crew"],
        rank=0 if worker is None else worker["rank"],
    )


async def renew(database: Database, claimed: Claimed, lease_seconds: float) -> bool:
    """Renew one lease at its holder's own wish; True if it was asked to stop, `LeaseLost` if it is gone."""
    row = await database.fetchrow(_HEARTBEAT, [claimed.task_id], [claimed.lease_token], lease_seconds)
    if row is None:
        raise LeaseLost(f"Attempt {claimed.attempt} of task {claimed.task_id} lost its lease.")
    return bool(row["cancel_requested"])
