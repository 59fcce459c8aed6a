"""Reconcile: waiting tasks whose time has come become claimable; lanes whose wake-up may be lost are named again."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.store.database import Database
from holdfast.store.statements import sql

_PROMOTE = sql("promote")
_NEXT_DUE = sql("next_due")
_UNCLAIMED_LANES = sql("unclaimed_lanes")

PROMOTE_BATCH = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    count: int
    lanes: list[int]


async def reconcile_once(database: Database, *, limit: int = PROMOTE_BATCH) -> Promoted:
    """Promote at most `limit` due tasks."""
    row = await database.fetchrow(_PROMOTE, limit)
    return Promoted(count=row["promoted"], lanes=row["lanes"] or [])


async def seconds_until_due(database: Database) -> float | None:
    """How long until the next waiting task is due; None when none waits."""
    seconds = await database.fetchval(_NEXT_DUE)
    return None if seconds is None else max(0.0, float(seconds))


async def unclaimed_lanes(database: Database) -> list[int]:
    return [row[0] for row in await database.fetch(_UNCLAIMED_LANES)]
