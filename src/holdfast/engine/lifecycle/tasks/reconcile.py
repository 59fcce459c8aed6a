"""Reconcile: make waiting tasks claimable when they are due, and list lanes whose notification may be lost.

Only this pass admits retries under a quota. It counts them under the quota's lock, so any number of concurrent
reconcilers admit no more than one would. Tasks without a quota need one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.limits.quota import admit
from holdfast.engine.limits.quotas import read_meters
from holdfast.store.database import Database, Session
from holdfast.store.sql.limits import guards as guards_sql
from holdfast.store.sql.tasks import lease as lease_sql

PROMOTE_BATCH = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """The result of a pass. `held` counts retries for which a quota has no capacity; they are postponed."""

    count: int
    lanes: list[int]
    held: int = 0


async def reconcile_once(database: Database, *, limit: int = PROMOTE_BATCH) -> Promoted:
    """Read at most `limit` due tasks and make those claimable that may run."""
    async with database.transaction() as session:
        return await promote(session, limit)


async def promote(session: Session, limit: int) -> Promoted:
    """Promote due tasks in the caller's transaction."""
    row = await lease_sql.promote(session, limit)
    promoted = Promoted(count=row.promoted, lanes=row.lanes or [])
    if not row.asked_tasks:
        return promoted
    metered = await _through_quotas(session, list(zip(row.asked_tasks, row.asked_lanes, strict=True)))
    lanes = sorted({*promoted.lanes, *metered.lanes})
    return Promoted(count=promoted.count + metered.count, lanes=lanes, held=metered.held)


async def _through_quotas(session: Session, due: Sequence[tuple[int, int]]) -> Promoted:
    """Admit the retries for which the quotas of their lane have capacity, and postpone the rest."""
    meters = await read_meters(session, sorted({lane_id for _, lane_id in due}))
    answer = admit(due, meters)
    rows = await guards_sql.admit_retries(session, answer.admitted) if answer.admitted else []
    if answer.held:
        await guards_sql.postpone_retries(session, list(answer.held), list(answer.held.values()))
    if touched := sorted(answer.spent.keys() | answer.booked.keys()):
        spent = [answer.spent.get(quota_id, 0) for quota_id in touched]
        await guards_sql.spend_quotas(session, touched, spent, [answer.booked.get(quota_id) for quota_id in touched])
    return Promoted(count=len(rows), lanes=[row.lane_id for row in rows], held=len(answer.held))


async def seconds_until_due(database: Database) -> float | None:
    """Return the seconds until the next waiting task is due; None if none waits."""
    seconds = await lease_sql.next_due(database)
    return None if seconds is None else max(0.0, float(seconds))


async def unclaimed_lanes(database: Database) -> list[int]:
    return [row[0] for row in await lease_sql.unclaimed_lanes(database)]
