"""Requeue the tasks and runs of locked dead letters, in the caller's transaction.

The sweep, operator commands, campaigns and `reinject_once` all use these functions; there is one way to run a dead task
again. Lock order: task, dead letter, run, node. The recorded end guards against concurrent re-drives: a plain task has
one `ended` row to delete, a run one generation to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX, DeadLetterState, dispatch_backoff_seconds
from holdfast.engine.lifecycle.runs.redrive import Redriven, redrive_run
from holdfast.engine.notifications import Notifications
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.sql.dead_letters import campaigns as campaigns_sql
from holdfast.store.sql.dead_letters import commands as commands_sql
from holdfast.store.sql.dead_letters import sweep as sweep_sql


class DeadLetter(msgspec.Struct, frozen=True):
    """A locked dead letter: its task, how often it was dispatched, its state before, and its node."""

    dead_letter_id: int
    task_id: int
    dispatches: int
    state: str
    node_no: int | None = None


class Dispatched(msgspec.Struct, frozen=True):
    """Dead letters that were marked as retrying, and the notifications to send after the commit."""

    letters: list[DeadLetter]
    tasks: int
    notifications: Notifications


class Requeued(msgspec.Struct, frozen=True):
    """A requeued task: its next attempt, and the notifications to send after the commit."""

    task_id: int
    attempt: int
    generation: int
    notifications: Notifications
    dead_letter_id: int | None = None


class RequeueRequest(msgspec.Struct, frozen=True):
    """The actor and reason of a re-drive, and its options: campaign, priority, whether to unpause the run, and the
    limit of dispatches."""

    actor: str
    reason: str
    campaign_id: int | None = None
    priority: int | None = None
    lifts_pause: bool = True
    dispatches_max: int = DISPATCHES_MAX


async def dispatch_tasks(
    session: Session, tenant_id: int, letters: Sequence[DeadLetter], by: RequeueRequest, *, is_asked: bool = True
) -> Dispatched:
    """Requeue the plain tasks of locked dead letters. Tasks that are no longer failed are left, with their dead
    letters.

    With `is_asked` False, one statement both requests and dispatches the dead letters.
    """
    task_ids = sorted({letter.task_id for letter in letters})
    rows = await sweep_sql.revive_tasks(session, task_ids, tenant_id, by.actor, by.reason, by.priority, False)
    revived = {row.task_id for row in rows}
    going = [letter for letter in letters if letter.task_id in revived]
    marked = await mark(session, going, by, is_requested=is_asked)
    return Dispatched(marked, len(revived), Notifications({row.lane_id for row in rows}, [], []))


async def lock_run_dead_letters(
    session: Session, tenant_id: int, run_ids: Iterable[int], task_ids: Sequence[int] = ()
) -> list[commands_sql.LockDeadLettersOfRunsRow]:
    """Lock every unresolved dead letter of some runs and tasks. Every re-drive locks these first."""
    numbers = sorted(set(run_ids))
    if not numbers and not task_ids:
        return []
    return list(await commands_sql.lock_dead_letters_of_runs(session, numbers, tenant_id, list(task_ids)))


async def dispatch_run(
    session: Session,
    catalog: Catalog,
    tenant_id: int,
    run_id: int,
    letters: Sequence[DeadLetter],
    held: Sequence[commands_sql.LockDeadLettersOfRunsRow],
    by: RequeueRequest,
    *,
    only: str | None = None,
) -> tuple[Dispatched, Redriven]:
    """Requeue a run once for all its locked dead letters. Errors of `redrive_run` are raised before anything is
    written.

    A dead letter whose node is running is not marked, because the re-drive does not touch it. A re-drive resets more
    nodes than the given dead letters belong to. Other dead letters in `held` that are open or requested, and whose
    nodes are reset, are marked too, because the caller re-drives the run. (Dead letters of items that a new expansion
    replaces are only requested: the sweep resolves them with their node.) The sweep passes no `held`: dead letters that
    start to retry with every dispatch of another one would never end.
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
    told = [row for row in waiting(held, run_id) if row.node_no in done.numbers and row.dead_letter_id not in given]
    await request(session, [row.dead_letter_id for row in told if row.state == DeadLetterState.OPEN], by)
    others = letters_of(row for row in told if done.keeps(run_id, row.node_no, row.task_id))
    marked = await mark(session, [*going, *others], by)
    return Dispatched(marked, len(going) + len(others), done.notifications), done


def waiting(held: Iterable[commands_sql.LockDeadLettersOfRunsRow], run_id: int) -> list[Any]:
    """Return the dead letters of one run that are open or requested."""
    states = (DeadLetterState.OPEN, DeadLetterState.RETRY_REQUESTED)
    return [row for row in held if row.run_id == run_id and row.state in states]


async def mark(
    session: Session, letters: Sequence[DeadLetter], by: RequeueRequest, *, is_requested: bool = True
) -> list[DeadLetter]:
    """Count one more dispatch on locked dead letters, and store the backoff that follows it. Return those marked.

    With `is_requested` False, the same statement also records the request.
    """
    if not letters:
        return []
    pauses = [dispatch_backoff_seconds(letter.dispatches + 1) for letter in letters]
    ids = [letter.dead_letter_id for letter in letters]
    who = (by.actor, by.reason, by.campaign_id)
    statement = sweep_sql.mark_dispatched if is_requested else sweep_sql.request_and_dispatch_dead_letters
    marked = set(await statement(session, ids, pauses, *who))
    return [letter for letter in letters if letter.dead_letter_id in marked]


async def request(session: Session, dead_letter_ids: Sequence[int], by: RequeueRequest) -> int:
    """Request a retry of dead letters that are open or ignored. Return how many changed."""
    return len(
        await sweep_sql.request_dead_letter_retries(
            session, list(dead_letter_ids), by.actor, by.reason, by.dispatches_max
        )
    )


async def redrive_task(
    session: Session,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    by: RequeueRequest,
) -> Requeued | None:
    """Re-drive one dead task through its newest dead letter, as a new generation; None if it has not failed for
    good."""
    found = await lock_dead_task(session, catalog, tenant_id, task_id)
    if found is None:
        return None
    dead, held, newest = found.row, found.held, found.newest
    # Without an unresolved dead letter (the last one was marked resolved), the task itself is run again.
    chosen = DeadLetter(0, task_id, 0, "", dead.node_no) if newest is None else await _requested(session, newest, by)
    if dead.run_id is None:
        done = await dispatch_tasks(session, tenant_id, [chosen], by)
        if not done.tasks:
            return None
    else:
        try:
            done, redriven = await dispatch_run(session, catalog, tenant_id, dead.run_id, [chosen], held, by)
        except Conflict as error:
            place = await commands_sql.dead_task(session, task_id, tenant_id)
            raise with_its_run(task_id, place is not None and place.is_canceled, error.detail) from error
        if dead.node_no not in redriven.numbers:
            raise with_its_run(task_id, False, f"Other items of its node in run {dead.run_id} are under way.")
    letter_id = None if newest is None else newest.dead_letter_id
    return Requeued(task_id, dead.attempt + 1, dead.generation + 1, done.notifications, letter_id)


class LockedDeadTask(msgspec.Struct, frozen=True):
    """A task that failed for good, with its unresolved dead letters and those of its run (`held`), all locked."""

    row: commands_sql.DeadTaskRow
    held: list[commands_sql.LockDeadLettersOfRunsRow]
    letters: list[commands_sql.LockDeadLettersOfTaskRow]

    @property
    def newest(self) -> commands_sql.LockDeadLettersOfTaskRow | None:
        return self.letters[-1] if self.letters else None


async def lock_dead_task(session: Session, catalog: Catalog, tenant_id: int, task_id: int) -> LockedDeadTask | None:
    """Lock the dead letters of a failed task. Return None if it has not failed for good; `Conflict` if its run was
    canceled."""
    place = await commands_sql.dead_task(session, task_id, tenant_id)
    held = (
        [] if place is None or place.run_id is None else await lock_run_dead_letters(session, tenant_id, [place.run_id])
    )
    letters = await commands_sql.lock_dead_letters_of_task(session, task_id, tenant_id)
    # Another transaction may have requeued the task while this one waited for the locks.
    dead = await commands_sql.dead_task(session, task_id, tenant_id)
    if dead is None or dead.state != "f":
        return None
    if dead.is_canceled:
        raise with_its_run(task_id, True, f"Run {dead.run_id} was canceled.")
    return LockedDeadTask(dead, held, list(letters))


async def _requested(session: Session, row: commands_sql.LockDeadLettersOfTaskRow, by: RequeueRequest) -> DeadLetter:
    is_reset = row.state == DeadLetterState.IGNORED
    if row.state in (DeadLetterState.OPEN, DeadLetterState.IGNORED):
        await request(session, [row.dead_letter_id], by)
    dispatches = 0 if is_reset else row.dispatches
    return DeadLetter(row.dead_letter_id, row.task_id, dispatches, row.state, row.node_no)


def with_its_run(task_id: int, is_canceled: bool, why: str) -> Conflict:
    """Build the error for a failed task that cannot be requeued because of its run."""
    return Conflict(
        f"cannot retry execution in status '{'canceled' if is_canceled else 'failed'}'",
        code="execution_not_retryable",
        advice=f"{why} Start a new run of the flow." if is_canceled else f"{why} Try again when its node is over.",
        task_id=str(task_id),
    )


LockedRow = campaigns_sql.TakeCampaignDeadLettersRow | sweep_sql.LockDeadLettersRow | sweep_sql.LockRunDeadLettersRow


def letters_of(rows: Iterable[LockedRow]) -> list[DeadLetter]:
    """Convert locked rows to dead letters."""
    return [DeadLetter(row.dead_letter_id, row.task_id, row.dispatches, row.state, row.node_no) for row in rows]
