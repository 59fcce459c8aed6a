"""Reap: end attempts whose lease nobody renewed, and decide what follows by the one rule.

Also the orphan sweep (a reservation nobody attached to) and the force behind a cancel past its grace and a time limit
that a worker does not keep. One bounded pass; any number of processes may run it at once, because the rows are locked
before they are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.failure import LOST_CODE, TIMEOUT_CODE, Failure
from holdfast.core.outcome import Canceled, Lost, Outcome, TimedOut
from holdfast.dispatcher.leases import NOTHING_SETTLED, Report, Settled
from holdfast.dispatcher.settle import settle
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.statements import sql

_EXPIRED = sql("expired")
_LOSE_WORKERS = sql("lose_workers")

REAP_BATCH = 500
PREPARE_SECONDS = 150.0
"""How long a worker may take between the claim and the work, from which the time limit counts: it may have to start a
process that loads much, for which it has two minutes."""
OVERDUE_SECONDS = PREPARE_SECONDS + 20.0
"""How far past its time limit, counted from the claim, an attempt may be whose worker still beats: besides that, its
grace to clean up, and a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    count: int
    settled: Settled


async def reap_once(
    database: Database, catalog: Catalog, *, overdue_seconds: float = OVERDUE_SECONDS, limit: int = REAP_BATCH
) -> Reaped:
    """End at most `limit` attempts that nobody can be running with a valid lease."""
    async with database.transaction() as session:
        rows = await session.fetch(_EXPIRED, limit, overdue_seconds)
        if not rows:
            return Reaped(count=0, settled=NOTHING_SETTLED)
        await catalog.learn((), {row["policy_id"] for row in rows}, session=session)
        catalog.guarded |= {row["lane_id"] for row in rows if row["is_guarded"]}
        settled = await settle(session, catalog, [_report(row) for row in rows])
    return Reaped(count=len(rows), settled=settled)


async def lose_workers_once(database: Database, *, silent_seconds: float) -> int:
    """Show workers silent for too long as lost. Decides nothing about their tasks: leases do."""
    return len(await database.fetch(_LOSE_WORKERS, silent_seconds))


def _report(row: Any) -> Report:
    lease = (row["task_id"], row["attempt"], row["lease_token"])
    return Report(*lease, row["policy_id"], row["retries"], row["losses"], _outcome(row), lane_id=row["lane_id"])


def _outcome(row: Any) -> Outcome:
    who = f"worker {row['worker_id']} ({row['worker_name']})" if row["worker_id"] is not None else "the launched worker"
    if row["is_canceled"]:
        return Canceled(reason=f"canceled by force: {who} did not stop in time")
    if row["state"] == "v":
        return Lost(Failure(code=LOST_CODE, message="The launched worker never attached to its reservation."))
    if row["is_past_deadline"]:
        how = "did not end it" if row["is_leased"] else "went silent"
        return TimedOut(Failure(code=TIMEOUT_CODE, message=f"The attempt passed its deadline and {who} {how}."))
    if row["worker_state"] == "gone":
        return Lost(Failure(code=LOST_CODE, message=f"The process of {who} ended while it held the lease."))
    expired = f"{row['lease_expires_at']:%H:%M:%S}"
    return Lost(Failure(code=LOST_CODE, message=f"The lease of {who} expired at {expired} without a heartbeat."))
