"""The pulse: two counters whose growth tells how much work comes and goes."""

from __future__ import annotations

import msgspec

from holdfast.store.database import Database
from holdfast.store.statements import sql

_PULSE = sql("pulse")


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Ids drawn so far, and attempts finished as the server's statistics know them."""

    enqueued: int
    finished: int


async def read_pulse(database: Database) -> Throughput:
    """Take the pulse. Rates need two."""
    row = await database.fetchrow(_PULSE)
    return Throughput(enqueued=row["enqueued"], finished=row["finished"])
