"""Reap: end attempts whose lease expired, and decide what follows by the same rule as for other failures.

This also ends reservations to which no launched worker attached, and attempts that ignore a cancellation past its grace
period or run past their time limit. One call is one bounded pass. Any number of processes may run it concurrently,
because rows are locked before they are evaluated. A lease that cannot be settled is settled alone, logged and left; the
other leases of the batch are settled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.tasks.failure import LOST_CODE, TIMEOUT_CODE, Failure
from holdfast.core.tasks.outcome import STOPPED, Canceled, Lost, Outcome, Released, TimedOut
from holdfast.engine.leases import NOTHING_SETTLED, Report, Settled
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.store.catalog import Catalog
from holdfast.store.database import LOCK_TIMEOUT, TRANSIENT, Database, Session
from holdfast.store.sql.tasks import lease as lease_sql
from holdfast.store.sql.workers import workers as workers_sql

log = logging.getLogger("holdfast.loops")

REAP_BATCH = 500
PREPARE_SECONDS = 150.0
"""Time allowed between the claim and the start of the work, from which the time limit counts. A worker may have to
start a process that loads much, for which it has two minutes."""
OVERDUE_SECONDS = PREPARE_SECONDS + 20.0
"""How far an attempt whose worker still sends heartbeats may run past its time limit, counted from the claim. It
includes the grace period for cleaning up and a lease."""


BUSY_RUNS_MAX = 4
"""How many locked runs one pass waits for, each for a moment; the rest is left to the next pass."""
_RUN_PATIENCE = "set local lock_timeout = '250ms'"
"""The task row stays locked while its run is waited for, and that must not block other transactions for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """The result of a pass: attempts that were ended, tasks that cannot be settled (`stuck`), and tasks whose run is
    locked (`busy`). `is_full` means that there may be more."""

    count: int = 0
    settled: Settled = NOTHING_SETTLED
    stuck: Sequence[int] = ()
    busy: Sequence[int] = ()
    is_full: bool = False
    ended: Sequence[Report] = ()
    """The settled reports, for the log."""

    def and_(self, other: Reaped) -> Reaped:
        return Reaped(
            count=self.count + other.count,
            settled=self.settled.and_(other.settled),
            stuck=[*self.stuck, *other.stuck],
            busy=[*self.busy, *other.busy],
            is_full=self.is_full or other.is_full,
            ended=[*self.ended, *other.ended],
        )


async def reap_once(
    database: Database,
    catalog: Catalog,
    *,
    overdue_seconds: float = OVERDUE_SECONDS,
    limit: int = REAP_BATCH,
    leave: Collection[int] = (),
    by_time: bool = True,
) -> Reaped:
    """End at most `limit` attempts that cannot have a valid lease; skip the tasks in `leave`.

    Tasks outside of runs are settled first, in a transaction of their own, because they wait for no run. With `by_time`
    False, only attempts of workers known to be dead are ended.
    """
    plain, node = ((limit, list(leave), overdue_seconds, is_node, by_time) for is_node in (False, True))
    reaped = await _reap(database, catalog, plain)
    if (left := limit - reaped.count - len(reaped.stuck)) <= 0:
        return reaped
    return reaped.and_(await _reap(database, catalog, (left, *node[1:]), patience=_RUN_PATIENCE))


async def _reap(database: Database, catalog: Catalog, asked: Sequence[Any], *, patience: str | None = None) -> Reaped:
    rows: Sequence[lease_sql.ExpiredRow] = ()
    try:
        async with database.transaction() as session:
            if patience is not None:
                await session.execute(patience)
            rows = await lease_sql.expired(session, *asked)
            settled = await _end(session, catalog, rows) if rows else NOTHING_SETTLED
    except LOCK_TIMEOUT:
        return await _reap_by_run(database, catalog, rows)
    except TRANSIENT:
        raise
    except Exception as error:
        if not rows:
            raise
        log.warning("one of %d expired leases cannot be settled; settling each alone: %s", len(rows), error)
        return await _reap_one_by_one(database, catalog, rows)
    ended = [_report(row) for row in rows]
    return Reaped(count=len(rows), settled=settled, is_full=len(rows) == asked[0], ended=ended)


async def _reap_by_run(database: Database, catalog: Catalog, rows: Sequence[lease_sql.ExpiredRow]) -> Reaped:
    """Settle the nodes of each run in a transaction of its own, so that a locked run delays no other."""
    runs: dict[int | None, list[lease_sql.ExpiredRow]] = {}
    for row in rows:
        runs.setdefault(row.run_id, []).append(row)
    reaped, busy_runs = Reaped(is_full=True), 0
    for some in runs.values():
        try:
            async with database.transaction() as session:
                await session.execute(_RUN_PATIENCE)
                settled = await _end(session, catalog, some)
            reaped = reaped.and_(Reaped(count=len(some), settled=settled, ended=[_report(row) for row in some]))
        except LOCK_TIMEOUT:
            reaped = reaped.and_(Reaped(busy=[row.task_id for row in some]))
            busy_runs += 1
            if busy_runs == BUSY_RUNS_MAX:
                break
        except TRANSIENT:
            raise
        except Exception as error:  # noqa: BLE001 - the failing row is found below
            log.warning("one of %d expired leases cannot be settled; settling each alone: %s", len(some), error)
            reaped = reaped.and_(await _reap_one_by_one(database, catalog, some))
    return reaped


async def _reap_one_by_one(database: Database, catalog: Catalog, rows: Sequence[lease_sql.ExpiredRow]) -> Reaped:
    """Settle each lease in a transaction of its own. An expired lease is never renewed, and the token check refuses a
    task that another attempt has taken since."""
    settled, stuck = NOTHING_SETTLED, []
    for row in rows:
        try:
            async with database.transaction() as session:
                alone = await _end(session, catalog, [row])
            settled = settled.and_(alone)
        except TRANSIENT:
            raise
        except Exception:
            # The row may be damaged or of a newer version, or this is a bug; the other leases must still be settled.
            log.exception("attempt %s of task %s is over and cannot be settled", row.attempt, row.task_id)
            stuck.append(row.task_id)
    return Reaped(count=len(rows) - len(stuck), settled=settled, stuck=stuck)


async def _end(session: Session, catalog: Catalog, rows: Sequence[lease_sql.ExpiredRow]) -> Settled:
    await catalog.learn({row.lane_id for row in rows}, {row.policy_id for row in rows}, session=session)
    catalog.guarded |= {row.lane_id for row in rows if row.is_guarded}
    return await settle(session, catalog, [_report(row) for row in rows])


async def lose_workers_once(database: Database, *, silent_seconds: float) -> int:
    """Mark workers without a recent heartbeat as lost. This decides nothing about their tasks: leases do."""
    return len(await workers_sql.lose_workers(database, silent_seconds))


def _report(row: lease_sql.ExpiredRow) -> Report:
    lease = (row.task_id, row.attempt, row.lease_token)
    return Report(*lease, row.policy_id, row.retries, row.losses, _outcome(row), lane_id=row.lane_id)


def _outcome(row: lease_sql.ExpiredRow) -> Outcome:
    who = f"worker {row.worker_id} ({row.worker_name})" if row.worker_id is not None else "the launched worker"
    if row.is_canceled:
        return Canceled(reason=f"canceled by force: {who} did not stop in time")
    if row.state == "v":
        return Lost(Failure(code=LOST_CODE, message="The launched worker never attached to its reservation."))
    if row.is_past_deadline:
        how = "did not end it" if row.is_leased else "went silent"
        return TimedOut(Failure(code=TIMEOUT_CODE, message=f"The attempt passed its deadline and {who} {how}."))
    if row.worker_state == "gone" and row.was_asked_to_stop:
        return Released(reason=STOPPED)
    if row.worker_state == "gone":
        return Lost(Failure(code=LOST_CODE, message=f"The process of {who} ended while it held the lease."))
    expired = f"{row.lease_expires_at:%H:%M:%S}"
    return Lost(Failure(code=LOST_CODE, message=f"The lease of {who} expired at {expired} without a heartbeat."))
