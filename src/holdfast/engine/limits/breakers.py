"""Circuit breakers: count the outcomes of guarded actions, open and close, grant trials, and let operators override.

Counting is part of settling, only for actions that have a breaker: one more statement per batch. That is cheaper than a
pass over recent failures, which would also have to find the successes, and a breaker opens with the failure that
exceeds its share, not at the next pass. `core.limits.breaker` has the rule. Every write names the state and period that
it is based on, so two workers that see the same failures open a breaker once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.limits.breaker import CIRCUIT_CODES, Breaker, CircuitState, after_trials, trial_room, trips
from holdfast.core.limits.window import Slice, Window
from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.errors import NotFound
from holdfast.store.database import Database, Session
from holdfast.store.sql.limits import guards as guards_sql

CAUSE_CHARACTERS_MAX = 200
_WORDS = {code: state.value for state, code in CIRCUIT_CODES.items()}
_STEERING = {
    CircuitState.OPEN: "breaker.open",
    CircuitState.CLOSED: "breaker.close",
    CircuitState.HALF_OPEN: "breaker.reset",
}


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """One attempt of a guarded action that completed, failed or timed out; `failure` is set if a retry could fix it."""

    task_id: int
    attempt: int
    lane_id: int
    failure: str = ""


async def count(session: Session, ended: Sequence[EndedAttempt]) -> list[int]:
    """Count outcomes settled in this transaction. Return the lanes that may run again because a breaker closed.

    This is the last step of settling: breakers are locked after tasks and runs everywhere.
    """
    rows = await guards_sql.tally_outcomes(
        session,
        [one.task_id for one in ended],
        [one.attempt for one in ended],
        [one.lane_id for one in ended],
        [bool(one.failure) for one in ended],
    )
    cause = _cause(ended)
    failing = [row.breaker_id for row in rows if row.state == "c" and row.part]
    if failing:
        await _open_if_too_many(session, failing, cause)
    lanes: list[int] = []
    for row in rows:
        if row.passed or row.failed:
            lanes += await _judge_trials(session, row, cause)
    return lanes


def _cause(ended: Iterable[EndedAttempt]) -> str:
    common = Counter(one.failure for one in ended if one.failure).most_common(1)
    return common[0][0][:CAUSE_CHARACTERS_MAX] if common else ""


async def _open_if_too_many(session: Session, breaker_ids: list[int], cause: str) -> None:
    windows = await read_windows(session, breaker_ids)
    for row in await guards_sql.read_breakers(session, breaker_ids):
        breaker = _breaker(row)
        window = Window(seconds=breaker.window_seconds, at=row.at, slices=windows.get(row.breaker_id, ()))
        if trips(breaker, window):
            counted = (window.whole, window.part, cause)
            await guards_sql.open_breaker(
                session, row.breaker_id, CIRCUIT_CODES[CircuitState.CLOSED], row.since, *counted
            )


async def _judge_trials(session: Session, row: guards_sql.TallyOutcomesRow, cause: str) -> list[int]:
    breaker_id, since = row.breaker_id, row.since
    (read,) = await guards_sql.read_breakers(session, [breaker_id])
    passed = read.passed
    if not row.failed:
        passed_by_now = await guards_sql.pass_trials(session, breaker_id, since, row.passed)
        if passed_by_now is None:
            return []
        passed = passed_by_now
    match after_trials(_breaker(read), passed=passed, failed=row.failed):
        case CircuitState.OPEN:
            counted = (row.passed + row.failed, row.failed, cause)
            await guards_sql.open_breaker(session, breaker_id, CIRCUIT_CODES[CircuitState.HALF_OPEN], since, *counted)
        case CircuitState.CLOSED:
            return await guards_sql.close_breaker(session, breaker_id, since) or []
        case CircuitState.HALF_OPEN:
            pass
    return []


async def read_windows(session: Session | Database, guard_ids: Sequence[int]) -> Mapping[int, list[Slice]]:
    """Return the counters of breakers or quotas, slice by slice."""
    found: dict[int, list[Slice]] = {}
    for row in await guards_sql.windows(session, list(guard_ids)):
        found.setdefault(row.guard_id, []).append(Slice(row.slice, row.whole, row.part))
    return found


async def trial_rooms(session: Session, breaker_ids: Sequence[int]) -> dict[int, int]:
    """Return how many trials breakers grant now. The caller's transaction excludes all others from granting.

    A breaker whose time has come becomes half-open here. An open breaker grants none. A breaker that another
    transaction has locked is missing from the result.
    """
    assert session.is_in_transaction()
    ordered = [row.breaker_id for row in await guards_sql.try_trials(session, sorted(breaker_ids))]
    await guards_sql.begin_trials(session, ordered)
    rooms = dict.fromkeys(ordered, 0)
    for row in await guards_sql.trials(session, ordered):
        breaker = Breaker(trials=row.trials)
        rooms[row.breaker_id] = trial_room(breaker, passed=row.passed, running=row.running)
    return rooms


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerView:
    """A breaker, for display. `attempts`, `failures` and `cause` state why it opened; `counted_*` is the current
    window."""

    action: str
    state: str
    since: datetime
    trial_at: datetime | None
    passed: int
    running: int
    share: float
    attempts_min: int
    window_seconds: float
    open_seconds: float
    trials: int
    attempts: int
    failures: int
    cause: str
    actor: str
    reason: str
    counted_attempts: int
    counted_failures: int


async def show_breaker(database: Database, tenant_id: int, action: str) -> BreakerView:
    """Return the breaker of an action; raise `NotFound` if it has none."""
    found = await find_breaker(database, tenant_id, action)
    if found is None:
        raise _missing(action)
    return found


async def find_breaker(database: Database, tenant_id: int, action: str) -> BreakerView | None:
    """Return the breaker of an action, or None."""
    row = await guards_sql.show_breaker(database, tenant_id, action)
    if row is None:
        return None
    found = row._asdict()
    breaker_id, at = found.pop("breaker_id"), found.pop("at")
    slices = (await read_windows(database, [breaker_id])).get(breaker_id, ())
    window = Window(seconds=row.window_seconds, at=at, slices=slices)
    return BreakerView(**found, counted_attempts=window.whole, counted_failures=window.part)


async def steer(
    engine: Engine, tenant_id: int, action: str, to: CircuitState, *, actor: str, reason: str
) -> BreakerView:
    """Open a breaker until it is closed by hand, close it, or try it now (`HALF_OPEN`). Its counters start again at
    zero."""
    async with engine.database.transaction() as session:
        row = await guards_sql.set_breaker_state(session, tenant_id, action, CIRCUIT_CODES[to], actor, reason)
        if row is None:
            raise _missing(action)
        change = Change(
            verb=_STEERING[to],
            subject_kind="action",
            subject_id=action,
            before={"state": _WORDS[row.was], "attempts": row.attempts, "failures": row.failures},
            after={"state": _WORDS[row.state], "attempts": 0, "failures": 0},
        )
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
    if to is not CircuitState.OPEN and row.lanes:
        engine.notifier.notify(lanes=row.lanes)
    return await show_breaker(engine.database, tenant_id, action)


def _missing(action: str) -> NotFound:
    return NotFound(
        f"The action {action!r} has no breaker.",
        code="breaker_not_found",
        advice="Declare one: @app.action(breaker=True). See `holdfast action list`.",
    )


def _breaker(row: guards_sql.ReadBreakersRow) -> Breaker:
    return Breaker(
        share=row.share,
        attempts_min=row.attempts_min,
        window_seconds=row.window_seconds,
        open_seconds=row.open_seconds,
        trials=row.trials,
    )
