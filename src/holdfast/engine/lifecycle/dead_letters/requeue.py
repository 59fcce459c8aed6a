"""Letters in hand: requeue what they stand for, in the caller's transaction.

The sweep, operators, campaigns and `reinject_once` come here; there is one way to run a dead task again, and it is the
way every task goes. Order of locks: task, letter, run, node. What guards against two at once is the task's own end: a
plain task has one `ended` row to take away, a run one generation to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX, LetterState, dispatch_backoff_seconds
from holdfast.engine.lifecycle.runs.redrive import Redriven, redrive_run
from holdfast.engine.notifications import Notifications
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.statements import sql

_REVIVE_TASKS = sql("revive_tasks")
_MARK_DISPATCHED = sql("mark_dispatched")
_SEND_LETTERS = sql("send_letters")
_REQUEST_LETTERS = sql("request_letters")
_LOCK_TASK_LETTERS = sql("lock_task_letters")
_HOLD_RUN_LETTERS = sql("hold_run_letters")
_DEAD_TASK = sql("dead_task")


class DeadLetter(msgspec.Struct, frozen=True):
    """A locked letter on its way: its task, how often it was dispatched before, where it stood, and its node."""

    dead_letter_id: int
    task_id: int
    dispatches: int
    state: str
    node_no: int | None = None


class Dispatched(msgspec.Struct, frozen=True):
    """Letters that were marked as retrying, and what to announce after the commit."""

    letters: list[DeadLetter]
    tasks: int
    notifications: Notifications


class Requeued(msgspec.Struct, frozen=True):
    """A task that runs again: the attempt that will run, and what to announce after the commit."""

    task_id: int
    attempt: int
    generation: int
    notifications: Notifications
    dead_letter_id: int | None = None


class RequeueRequest(msgspec.Struct, frozen=True):
    """Who runs dead work again, why, and how it shall go: in a campaign, with another priority than its own, without
    lifting the pause of a run, or with fewer dispatches than usual."""

    actor: str
    reason: str
    campaign_id: int | None = None
    priority: int | None = None
    lifts_pause: bool = True
    dispatches_max: int = DISPATCHES_MAX


async def dispatch_tasks(
    session: Session, tenant_id: int, letters: Sequence[DeadLetter], by: RequeueRequest, *, is_asked: bool = True
) -> Dispatched:
    """Requeue the plain tasks of locked letters; those that are no longer failed are left, with their letters.

    Letters that nobody has asked for yet (`is_asked`) are asked for and dispatched by one statement.
    """
    task_ids = sorted({letter.task_id for letter in letters})
    rows = await session.fetch(_REVIVE_TASKS, task_ids, tenant_id, by.actor, by.reason, by.priority, False)
    revived = {row["task_id"] for row in rows}
    going = [letter for letter in letters if letter.task_id in revived]
    marked = await mark(session, going, by, _MARK_DISPATCHED if is_asked else _SEND_LETTERS)
    return Dispatched(marked, len(revived), Notifications({row["lane_id"] for row in rows}, [], []))


async def hold_runs(
    session: Session, tenant_id: int, run_ids: Iterable[int], task_ids: Sequence[int] = ()
) -> list[Any]:
    """Lock every unresolved letter of some runs, as whoever re-drives them does first, and of some tasks."""
    numbers = sorted(set(run_ids))
    if not numbers and not task_ids:
        return []
    return list(await session.fetch(_HOLD_RUN_LETTERS, numbers, tenant_id, list(task_ids)))


async def dispatch_run(
    session: Session,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    letters: Sequence[DeadLetter],
    held: Sequence[Any],
    by: RequeueRequest,
    *,
    only: str | None = None,
) -> tuple[Dispatched, Redriven]:
    """Requeue a run for its locked letters, once for all. What `redrive_run` raises it raises before it writes.

    Letters whose node is under way, and so left alone, are not marked: nothing is tried for them. A re-drive resets
    more than one letter stands for: whatever else of the letters `held` is open or asked for, and belongs to what goes
    again, is marked with them: somebody asked for the run. (An item that others replace is asked for: the sweep
    resolves it with its node.) The sweep itself holds none: letters that began to retry with every dispatch of another
    would never come to an end.
    """
    done = await redrive_run(
        session,
        catalog,
        tenant_id,
        run_id,
        actor=by.actor,
        reason=by.reason,
        only=only,
        priority=by.priority,
        lifts_pause=by.lifts_pause,
    )
    going = [letter for letter in letters if letter.node_no in done.numbers]
    given = {letter.dead_letter_id for letter in letters}
    told = [
        row for row in waiting(held, run_id) if row["node_no"] in done.numbers and row["dead_letter_id"] not in given
    ]
    await request(session, [row["dead_letter_id"] for row in told if row["state"] == LetterState.OPEN], by)
    others = letters_of(row for row in told if done.keeps(run_id, row["node_no"], row["task_id"]))
    marked = await mark(session, [*going, *others], by)
    return Dispatched(marked, len(going) + len(others), done.notifications), done


def waiting(held: Iterable[Any], run_id: int) -> list[Any]:
    """Of held letters those of one run that somebody has yet to act on, or asked for."""
    states = (LetterState.OPEN, LetterState.RETRY_REQUESTED)
    return [row for row in held if row["run_id"] == run_id and row["state"] in states]


async def mark(
    session: Session, letters: Sequence[DeadLetter], by: RequeueRequest, statement: str = _MARK_DISPATCHED
) -> list[DeadLetter]:
    """Count one dispatch more on locked letters, and store the pause that follows it."""
    if not letters:
        return []
    pauses = [dispatch_backoff_seconds(letter.dispatches + 1) for letter in letters]
    ids = [letter.dead_letter_id for letter in letters]
    who = (by.actor, by.reason, by.campaign_id)
    marked = {row["dead_letter_id"] for row in await session.fetch(statement, ids, pauses, *who)}
    return [letter for letter in letters if letter.dead_letter_id in marked]


async def request(session: Session, dead_letter_ids: Sequence[int], by: RequeueRequest) -> int:
    """Ask for letters that are open or were parked to be retried."""
    return len(await session.fetch(_REQUEST_LETTERS, list(dead_letter_ids), by.actor, by.reason, by.dispatches_max))


async def redrive_task(
    session: Session,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    by: RequeueRequest,
) -> Requeued | None:
    """Run one dead task again through its newest letter, as a new generation; None if it is not failed for good."""
    found = await lock_dead_task(session, catalog, tenant_id, task_id)
    if found is None:
        return None
    dead, held, newest = found.row, found.held, found.newest
    # Without a letter in the way (somebody called the last one resolved) the task itself is run again.
    chosen = DeadLetter(0, task_id, 0, "", dead["node_no"]) if newest is None else await _requested(session, newest, by)
    if dead["run_id"] is None:
        done = await dispatch_tasks(session, tenant_id, [chosen], by)
        if not done.tasks:
            return None
    else:
        try:
            done, redriven = await dispatch_run(session, catalog, tenant_id, dead["run_id"], [chosen], held, by)
        except Conflict as error:
            place = await session.fetchrow(_DEAD_TASK, task_id, tenant_id)
            raise with_its_run(task_id, place is not None and place["is_canceled"], error.detail) from error
        if dead["node_no"] not in redriven.numbers:
            raise with_its_run(task_id, False, f"Other items of its node in run {dead['run_id']} are under way.")
    letter_id = None if newest is None else newest["dead_letter_id"]
    return Requeued(task_id, dead["attempt"] + 1, dead["generation"] + 1, done.notifications, letter_id)


class LockedDeadTask(msgspec.Struct, frozen=True):
    """A task that failed for good, with its unresolved letters and those of its run (`held`) under their locks."""

    row: Any
    held: list[Any]
    letters: list[Any]

    @property
    def newest(self) -> Any:
        return self.letters[-1] if self.letters else None


async def lock_dead_task(session: Session, catalog: Catalog, tenant_id: int, task_id: int) -> LockedDeadTask | None:
    """Lock the letters of a failed task; None if it is not failed for good. `Conflict` if its run was canceled."""
    place = await session.fetchrow(_DEAD_TASK, task_id, tenant_id)
    held = [] if place is None or place["run_id"] is None else await hold_runs(session, tenant_id, [place["run_id"]])
    letters = await session.fetch(_LOCK_TASK_LETTERS, task_id, tenant_id)
    # Another transaction may have run the task again while this one waited for the letters.
    dead = await session.fetchrow(_DEAD_TASK, task_id, tenant_id)
    if dead is None or dead["state"] != "f":
        return None
    if dead["is_canceled"]:
        raise with_its_run(task_id, True, f"Run {dead['run_id']} was canceled.")
    return LockedDeadTask(dead, held, list(letters))


async def _requested(session: Session, row: Any, by: RequeueRequest) -> DeadLetter:
    is_reset = row["state"] == LetterState.IGNORED
    if row["state"] in (LetterState.OPEN, LetterState.IGNORED):
        await request(session, [row["dead_letter_id"]], by)
    dispatches = 0 if is_reset else row["dispatches"]
    return DeadLetter(row["dead_letter_id"], row["task_id"], dispatches, row["state"], row["node_no"])


def with_its_run(task_id: int, is_canceled: bool, why: str) -> Conflict:
    """A failed task that cannot go because its run cannot."""
    return Conflict(
        f"cannot retry execution in status '{'canceled' if is_canceled else 'failed'}'",
        code="execution_not_retryable",
        advice=f"{why} Start the flow anew." if is_canceled else f"{why} Try again when its node is over.",
        task_id=str(task_id),
    )


def letters_of(rows: Iterable[Any]) -> list[DeadLetter]:
    """Locked rows as letters."""
    names = ("dead_letter_id", "task_id", "dispatches", "state", "node_no")
    return [DeadLetter(*(row[name] for name in names)) for row in rows]
