"""The outbox of hints: written by triggers in the transaction that makes a task claimable, sent by relays.

It is off by default: the triggers are disabled and cost the hot table nothing. Passes are bounded, and any number of
relays may run them concurrently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from holdfast.core.wakeups.hint import Hint
from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.errors import Forbidden, Invalid, Unavailable
from holdfast.store.database import LOCK_TIMEOUT, Database
from holdfast.store.sql.wakeups import outbox as outbox_sql

_LOCK_TIMEOUT = "set local lock_timeout = '3s'"

TAKE_BATCH = 200
CLEAR_BATCH = 10_000
HINTS_MAX = 100_000
RESEND_SECONDS_MAX = 300.0
DETAIL_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeView:
    """Whether hints are written, how many are outstanding, and the state of the carrier at its last use."""

    is_on: bool
    hints_max: int
    outstanding: int
    carrier: str
    away_seconds: float | None
    away_detail: str
    late_seconds: float


async def read_wake(database: Database) -> WakeView:
    row = await outbox_sql.read_wake(database)
    return WakeView(
        is_on=row.is_on,
        hints_max=row.hints_max,
        outstanding=row.outstanding,
        carrier=row.carrier,
        away_seconds=row.away_seconds,
        away_detail=row.away_detail,
        late_seconds=max(0.0, row.late_seconds or 0.0),
    )


async def write_hints(
    engine: Engine, wanted: bool, *, hints_max: int | None = None, actor: str, reason: str
) -> WakeView:
    """Start or stop writing hints. Takes a short lock on the hot table, which only its owner may."""
    if hints_max is not None and not 1 <= hints_max <= HINTS_MAX:
        raise Invalid(
            f"A queue cannot have {hints_max} outstanding hints.",
            code="invalid_limit",
            advice=f"Choose 1 to {HINTS_MAX}.",
        )
    before = await read_wake(engine.database)
    try:
        async with engine.database.transaction() as session:
            await session.execute(_LOCK_TIMEOUT)
            await outbox_sql.write_hints(session, wanted, hints_max)
            after = {"is_on": wanted, "hints_max": hints_max or before.hints_max}
            change = Change(
                verb="wake.on" if wanted else "wake.off",
                subject_kind="wake",
                subject_id="hints",
                before={"is_on": before.is_on, "hints_max": before.hints_max},
                after=after,
            )
            await audit(session, engine.tenant_id, [change], actor=actor, reason=reason)
    except asyncpg.InsufficientPrivilegeError as error:
        raise Forbidden(
            f"This database role may not change how hints are written: {error}.",
            code="not_the_owner",
            advice="Run it as the role that ran `holdfast migrate`.",
        ) from error
    except LOCK_TIMEOUT as error:
        raise Unavailable(
            "A long transaction holds the hot table.",
            code="hot_table_busy",
            advice="Try again when it is over (pg_stat_activity shows it).",
        ) from error
    return await read_wake(engine.database)


async def take_hints(database: Database, *, resend_seconds: float, limit: int = TAKE_BATCH) -> list[Hint]:
    """Take the hints that are due for sending. They become due again while their tasks wait."""
    rows = await outbox_sql.take_hints(database, limit, resend_seconds, max(RESEND_SECONDS_MAX, resend_seconds))
    return [Hint(task_id=row[0], attempt=row[1], action=row[2], queue=row[3], sends=row[4]) for row in rows]


async def return_hints(database: Database, hints: Sequence[Hint], *, seconds: float = 0.0) -> None:
    """Return hints that could not be sent: they are due again in that many seconds."""
    await outbox_sql.return_hints(database, [hint.task_id for hint in hints], seconds)


async def remind_hints(database: Database, task_ids: Sequence[int]) -> set[int]:
    """Send outstanding hints of these tasks once more. Return the tasks that have one."""
    return {row[0] for row in await outbox_sql.remind_hints(database, list(task_ids))}


async def replenish_once(database: Database) -> int:
    """Delete hints that are no longer needed, and write hints for waiting tasks without one. Return how many were
    written."""
    await outbox_sql.clear_hints(database, CLEAR_BATCH)
    return len(await outbox_sql.fill_hints(database))


async def tell_away(database: Database, carrier: str, detail: str) -> None:
    await outbox_sql.record_carrier_outage(database, carrier, detail[:DETAIL_MAX])


async def tell_back(database: Database, carrier: str) -> None:
    await outbox_sql.record_carrier_recovery(database, carrier)
