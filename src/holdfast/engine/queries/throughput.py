"""Two counters whose growth gives the rates of enqueued and finished tasks."""

from __future__ import annotations

import msgspec

from holdfast.store.database import Database
from holdfast.store.sql.queries import tasks as tasks_sql


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Ids drawn so far, and attempts finished according to the server's statistics."""

    enqueued: int
    finished: int


async def read_pulse(database: Database) -> Throughput:
    """Read the counters. A rate needs two readings."""
    row = await tasks_sql.throughput_counts(database)
    return Throughput(enqueued=row.enqueued, finished=row.finished)
