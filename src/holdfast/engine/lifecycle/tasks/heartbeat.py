"""Heartbeat: extend leases before they expire, and report which are lost or must stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.engine.leases import Claimed, Report
from holdfast.errors import LeaseLost
from holdfast.store.database import Database, Session
from holdfast.store.session import first
from holdfast.store.sql.tasks import lease as lease_sql
from holdfast.store.sql.workers import workers as workers_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The result of a heartbeat: renewed and lost leases, leases asked to stop, and the worker's state (None: unknown).

    A `busy` lease is neither renewed nor lost, because another transaction has locked its row. It stays valid until it
    expires, and the worker renews it again soon.
    """

    renewed: frozenset[int]
    lost: frozenset[int]
    canceled: frozenset[int]
    worker_state: str | None
    busy: frozenset[int] = frozenset()
    peers: int = 1
    """How many workers of the same kind are present."""
    rank: int = 0
    """How many of them registered before this one."""
    lease_seconds: float = 10.0
    """How long the renewed leases are valid from now."""
    kept: frozenset[int] = frozenset()
    """Leases of ended attempts that stay valid until their reports are settled."""


async def heartbeat(
    session: Session,
    worker_id: int,
    leases: Mapping[int, Any],
    *,
    lease_seconds: float,
    health: str = "{}",
    ended: Mapping[int, Any] | None = None,
) -> Beat:
    """Renew `leases` (task id → token) of one worker, and leases of attempts that `ended` and are not settled yet."""
    found = await renew_all(session, list(leases.keys()), list(leases.values()), lease_seconds=lease_seconds)
    late = ended or {}
    kept = await renew_ended(session, list(late.keys()), list(late.values()), lease_seconds=lease_seconds)
    worker = await workers_sql.beat_worker(session, worker_id, health)
    return Beat(
        renewed=found.renewed,
        lost=frozenset(leases) - found.renewed - found.busy,
        canceled=found.canceled,
        busy=found.busy,
        worker_state=None if worker is None else worker.state,
        peers=1 if worker is None else worker.crew,
        rank=0 if worker is None else worker.rank,
        lease_seconds=lease_seconds,
        kept=kept,
    )


class Renewals(NamedTuple):
    """Leases that were extended, leases that were asked to stop, and leases whose rows another transaction has
    locked."""

    renewed: frozenset[int] = frozenset()
    canceled: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()

    @staticmethod
    def of(rows: Sequence[lease_sql.HeartbeatRow | lease_sql.RenewHeldRow]) -> Renewals:
        return Renewals(
            renewed=frozenset(row.task_id for row in rows if not row.is_busy),
            canceled=frozenset(row.task_id for row in rows if row.cancel_requested),
            busy=frozenset(row.task_id for row in rows if row.is_busy),
        )


async def renew_all(
    session: Session, task_ids: Sequence[int], tokens: Sequence[Any], *, lease_seconds: float
) -> Renewals:
    """Extend leases that are still valid, without waiting for any lock."""
    if not task_ids:
        return Renewals()
    return Renewals.of(await lease_sql.heartbeat(session, list(task_ids), list(tokens), lease_seconds))


async def renew_ended(
    session: Session, task_ids: Sequence[int], tokens: Sequence[Any], *, lease_seconds: float
) -> frozenset[int]:
    """Extend the leases of attempts whose reports are not settled yet, without waiting for a lock. Return those
    extended."""
    if not task_ids:
        return frozenset()
    rows = await lease_sql.renew_ended(session, list(task_ids), list(tokens), lease_seconds)
    return frozenset(row.task_id for row in rows)


async def keep_leases(session: Session, reports: Sequence[Report], *, lease_seconds: float) -> None:
    """Renew the leases of reports that could not be settled because of a lock; the worker reports them again."""
    tokens = [report.lease_token for report in reports]
    await renew_ended(session, [report.task_id for report in reports], tokens, lease_seconds=lease_seconds)


async def renew(database: Database, claimed: Claimed, lease_seconds: float) -> bool:
    """Renew one lease at the request of its attempt. Return True if it was asked to stop; raise `LeaseLost` if it is
    lost.

    If another transaction has locked the row, the lease is neither renewed nor lost; the worker's heartbeats continue.
    """
    row = first(await lease_sql.heartbeat(database, [claimed.task_id], [claimed.lease_token], lease_seconds))
    if row is None:
        raise LeaseLost(f"Attempt {claimed.attempt} of task {claimed.task_id} lost its lease.")
    return bool(row.cancel_requested)
