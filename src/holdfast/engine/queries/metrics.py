"""Metrics of one tenant for a monitoring system, each read in bounded time.

The current state is what `queue list` counts, without history. Events are counted from the time this process was first
asked, a bounded number of batches per reading; a reading that is behind catches up with the next ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.engine.limits.queues import QueueView, list_queues
from holdfast.engine.queries.events import cursor_of, event_tail, position
from holdfast.store.database import Database
from holdfast.store.sql.queries import metrics as metrics_sql

BATCHES_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCount:
    """The workers in one state."""

    state: str
    workers: int
    slots: int
    unhealthy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One reading. `is_behind`: not all new events were counted; the next reading continues."""

    queues: Sequence[QueueView]
    workers: Sequence[WorkerCount]
    events: Mapping[str, int]
    is_behind: bool


@dataclass(slots=True)
class _Tally:
    cursor: str
    events: Counter[str] = field(default_factory=Counter)
    is_behind: bool = False


class Measure:
    """Event counters of any number of tenants. One per process."""

    def __init__(self) -> None:
        self._tallies: dict[int, _Tally] = {}
        self._turn = asyncio.Lock()

    async def read(self, database: Database, tenant_id: int) -> Measured:
        """Return the current metrics of a tenant. Concurrent readers are serialized, so that scrapes cannot overload
        the database."""
        async with self._turn:
            tally = await self._tally(database, tenant_id)
            queues = await list_queues(database, tenant_id, with_history=False)
            workers = [WorkerCount(**row._asdict()) for row in await metrics_sql.count_workers(database, tenant_id)]
            return Measured(queues=queues, workers=workers, events=dict(tally.events), is_behind=tally.is_behind)

    async def _tally(self, database: Database, tenant_id: int) -> _Tally:
        if (tally := self._tallies.get(tenant_id)) is None:
            tally = self._tallies[tenant_id] = _Tally(await event_tail(database))
            return tally
        xid, seq, _ = cursor_of(tally.cursor)
        rows: list[metrics_sql.CountEventsRow] = await metrics_sql.count_events(
            database, tenant_id, xid, seq + 1, BATCHES_MAX
        )
        for row in rows:
            if row.kind is not None:
                tally.events[row.kind] += row.events
            else:
                tally.cursor = max(tally.cursor, f"{row.xid}:{row.seq}", key=position)
                tally.is_behind = not row.is_end
        return tally
