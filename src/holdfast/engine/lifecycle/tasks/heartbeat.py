"""Heartbeat: extend leases before they expire, and learn which are lost or must stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.engine.leases import Claimed, Report
from holdfast.errors import LeaseLost
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_HEARTBEAT = sql("heartbeat")
_RENEW_ENDED = sql("renew_ended")
_BEAT_WORKER = sql("beat_worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The answer: leases that go on, those lost, those asked to stop, and the worker's own state (None: unknown).

    A lease that is `busy` is neither renewed nor lost: another transaction holds its row. It goes on until it expires,
    and is asked for again soon.
    """

    renewed: frozenset[int]
    lost: frozenset[int]
    canceled: frozenset[int]
    worker_state: str | None
    busy: frozenset[int] = frozenset()
    crew: int = 1
    """How many workers of the same kind are present."""
    rank: int = 0
    """How many of them came before this one."""
    lease_seconds: float = 10.0
    """How long what was renewed holds from now."""
    kept: frozenset[int] = frozenset()
    """Leases of ended attempts that go on until their reports are settled."""


async def heartbeat(
    session: Session,
    worker_id: int,
    leases: Mapping[int, Any],
    *,
    lease_seconds: float,
    health: str = "{}",
    ended: Mapping[int, Any] | None = None,
) -> Beat:
    """Renew `leases` (task id → token) of one worker, and those of attempts that `ended` and are not settled yet."""
    found = await renew_all(session, list(leases.keys()), list(leases.values()), lease_seconds=lease_seconds)
    late = ended or {}
    kept = await renew_ended(session, list(late.keys()), list(late.values()), lease_seconds=lease_seconds)
    worker = await session.fetchrow(_BEAT_WORKER, worker_id, health)
    return Beat(
        renewed=found.renewed,
        lost=frozenset(leases) - found.renewed - found.busy,
        canceled=found.canceled,
        busy=found.busy,
        worker_state=None if worker is None else worker["state"],
        crew=1 if worker is None else worker["crew"],
        rank=0 if worker is None else worker["rank"],
        lease_seconds=lease_seconds,
        kept=kept,
    )


class Renewals(NamedTuple):
    """Which leases were extended, which of all were asked to stop, and which another transaction holds."""

    renewed: frozenset[int] = frozenset()
    canceled: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()

    @staticmethod
    def of(rows: Sequence[Any]) -> Renewals:
        return Renewals(
            renewed=frozenset(row["task_id"] for row in rows if not row["is_busy"]),
            canceled=frozenset(row["task_id"] for row in rows if row["cancel_requested"]),
            busy=frozenset(row["task_id"] for row in rows if row["is_busy"]),
        )


async def renew_all(
    session: Session, task_ids: Sequence[int], tokens: Sequence[Any], *, lease_seconds: float
) -> Renewals:
    """Extend leases that are still held, without waiting for any lock."""
    if not task_ids:
        return Renewals()
    return Renewals.of(await session.fetch(_HEARTBEAT, list(task_ids), list(tokens), lease_seconds))


async def renew_ended(
    session: Session, task_ids: Sequence[int], tokens: Sequence[Any], *, lease_seconds: float
) -> frozenset[int]:
    """Extend leases of attempts whose reports are on their way: those that could be, without waiting for anybody."""
    if not task_ids:
        return frozenset()
    rows = await session.fetch(_RENEW_ENDED, list(task_ids), list(tokens), lease_seconds)
    return frozenset(row["task_id"] for row in rows)


async def keep_leases(session: Session, reports: Sequence[Report], *, lease_seconds: float) -> None:
    """Renew the leases of reports that could not be settled, because others hold a lock: they are reported again."""
    tokens = [report.lease_token for report in reports]
    await renew_ended(session, [report.task_id for report in reports], tokens, lease_seconds=lease_seconds)


async def renew(database: Database, claimed: Claimed, lease_seconds: float) -> bool:
    """Renew one lease at its holder's own wish; True if it was asked to stop, `LeaseLost` if it is gone.

    Where another transaction holds its row it is not renewed this time, and not lost: the worker's beats go on.
    """
    row = await database.fetchrow(_HEARTBEAT, [claimed.task_id], [claimed.lease_token], lease_seconds)
    if row is None:
        raise LeaseLost(f"Attempt {claimed.attempt} of task {claimed.task_id} lost its lease.")
    return bool(row["cancel_requested"])
