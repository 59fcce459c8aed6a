"""Operator commands on dead letters: re-drive a task or a group, ignore, abandon, resolve.

Each requires a reason, which is recorded. A task is requeued at once, in one transaction. A group is marked in batches
and dispatched by the sweep, so that a hundred thousand dead letters are not one transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX, DeadLetterState, Disposition, valid_dispatches
from holdfast.core.values.bounds import required_reason
from holdfast.engine.audit import Change, audit
from holdfast.engine.dispatch_transaction import REINJECT, dispatch_transaction
from holdfast.engine.effects.gate import EffectView, undone_effects, unknown_effects
from holdfast.engine.engine import Engine
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.lifecycle.dead_letters.requeue import Requeued, RequeueRequest, redrive_task, request, with_its_run
from holdfast.engine.lifecycle.runs.commands import cancel_run_in
from holdfast.engine.lifecycle.runs.redrive import plan_redrive
from holdfast.engine.lifecycle.tasks.retry import not_retryable, requeued
from holdfast.engine.publish import publish_and_propagate
from holdfast.errors import Conflict, NotFound
from holdfast.store.sql.dead_letters import commands as commands_sql
from holdfast.store.sql.queries import dead_letters as dead_letters_sql

REQUEST_BATCH = 1_000
ABANDON_BATCH = 100
"""Smaller, because the runs of these dead letters are canceled in the same transaction and locked as long."""


class DeadLettersMoved(msgspec.Struct, frozen=True):
    """How many dead letters a command changed, and of how many tasks."""

    letters: int
    tasks: int


async def redrive(
    engine: Engine,
    tenant_id: int,
    task_id: int,
    *,
    actor: str,
    reason: str,
    dispatches: int = DISPATCHES_MAX,
    once: IdempotentRequest | None = None,
    answer: Callable[[Requeued], Any] = lambda done: done,
) -> Requeued:
    """Run one failed task again as a new generation, however much of its budget is spent; its run is re-driven with it.

    `DispatchFailed` if the database rejected the whole transaction. With `once`, the value of `answer` is stored under
    the idempotency key and returned to a repetition.
    """
    by = RequeueRequest(actor, required_reason(reason), dispatches_max=valid_dispatches(dispatches))
    async with dispatch_transaction(engine.database, REINJECT, f"The re-drive of task {task_id}") as session:
        if once is not None:
            await once.begin(session)
        done = await redrive_task(session, engine.catalog, tenant_id, task_id, by)
        if done is None:
            raise await not_retryable(session, tenant_id, task_id)
        await audit(
            session, tenant_id, [requeued("dead.redrive", done, before="failed")], actor=actor, reason=by.reason
        )
        if once is not None:
            await once.keep(session, answer(done))
    await publish_and_propagate(engine, done.notifications)
    return done


async def repeated_by(engine: Engine, tenant_id: int, task_id: int) -> list[EffectView]:
    """Return the effects that a re-drive of a failed task meets: those without a receipt, which it may perform a second
    time, and those that were compensated (`compensated_by`), at which it fails. Includes the nodes of its run that
    would be reset.

    Changes nothing; raises the same errors as the re-drive.
    """
    async with engine.database.transaction() as session:
        dead = await commands_sql.dead_task(session, task_id, tenant_id)
        if dead is None or dead.state != "f":
            raise await not_retryable(session, tenant_id, task_id)
        reset = [task_id]
        if dead.run_id is not None:
            try:
                reset += (await plan_redrive(session, engine.catalog, tenant_id, dead.run_id)).task_ids
            except Conflict as error:
                raise with_its_run(task_id, dead.is_canceled, error.detail) from error
    undone = await undone_effects(engine.database, tenant_id, reset)
    return [*await unknown_effects(engine.database, tenant_id, reset), *undone]


async def redrive_group(
    engine: Engine,
    tenant_id: int,
    fingerprint: str,
    *,
    actor: str,
    reason: str,
    dispatches: int = DISPATCHES_MAX,
    once: IdempotentRequest | None = None,
    answer: Callable[[DeadLettersMoved], Any] = lambda asked: asked,
) -> DeadLettersMoved:
    """Request a retry of every dead letter of a group that is open or ignored; the sweep dispatches them.

    A repetition requests nothing more. `NotFound` if the group has no unresolved dead letter. With `once`, the value of
    `answer` is returned to a repetition; a request that was interrupted continues and counts what was left.
    """
    by = RequeueRequest(actor, required_reason(reason), dispatches_max=valid_dispatches(dispatches))
    after = asked = 0
    while True:
        async with engine.database.transaction() as session:
            if once is not None and not after:
                await once.begin(session)
            page = await commands_sql.dead_letters_of_group(session, tenant_id, fingerprint, after, REQUEST_BATCH)
            if not page:
                break
            count = await request(session, [row.dead_letter_id for row in page], by)
            change = _group_change(fingerprint, page, count)
            await audit(session, tenant_id, [change], actor=actor, reason=by.reason)
            asked += count
        after = page[-1].dead_letter_id
    if not asked and not await dead_letters_sql.unresolved_dead_letters(
        engine.database, tenant_id, None, fingerprint, 0, 1, False
    ):
        raise _no_group(fingerprint)
    done = DeadLettersMoved(asked, asked)
    if once is not None:
        async with engine.database.transaction() as session:
            await once.keep(session, answer(done))
    return done


async def ignore(
    engine: Engine,
    tenant_id: int,
    *,
    task_id: int | None = None,
    fingerprint: str | None = None,
    actor: str,
    reason: str,
    abandons: bool = False,
) -> DeadLettersMoved:
    """Mark the unresolved dead letters of a task or group as ignored.

    `abandons` marks them, and those ignored before, as abandoned and cancels their runs in the same transaction. A
    repetition cancels the runs that are still open.
    """
    why = required_reason(reason)
    how = Disposition.ABANDONED if abandons else Disposition.IGNORED
    who = {"actor": actor, "reason": why}
    moved: list[int] = []
    async for page in _unresolved(engine, tenant_id, task_id, fingerprint, with_ignored=abandons):
        async with engine.database.transaction() as session:
            ids = [row.dead_letter_id for row in page]
            rows = await commands_sql.ignore_dead_letters(session, ids, actor, why, how, tenant_id)
            changes = [_letter_change("dead.ignore", row, DeadLetterState.IGNORED, how) for row in rows]
            run_ids = sorted({row.run_id for row in page if abandons and row.run_id is not None})
            ended = [await cancel_run_in(session, engine.catalog, tenant_id, run_id, **who) for run_id in run_ids]
            canceled = [done for done in ended if done is not None]
            changes += [done.change for done in canceled]
            await audit(session, tenant_id, changes, **who)
        moved += [row.task_id for row in rows]
        grace = engine.settings.worker.cancel_grace_seconds
        for done in canceled:
            notifications = await done.ask_tasks(engine.database, engine.catalog, tenant_id, actor, why, grace)
            await publish_and_propagate(engine, notifications)
    return DeadLettersMoved(len(moved), len(set(moved)))


async def resolve(
    engine: Engine,
    tenant_id: int,
    *,
    task_id: int | None = None,
    fingerprint: str | None = None,
    actor: str,
    reason: str,
) -> DeadLettersMoved:
    """Mark the dead letters of a task or group as resolved: their cause was fixed by hand. Requested retries are
    dropped."""
    why = required_reason(reason)
    moved: list[int] = []
    async for page in _unresolved(engine, tenant_id, task_id, fingerprint):
        async with engine.database.transaction() as session:
            ids = [row.dead_letter_id for row in page]
            rows = await commands_sql.resolve_dead_letters(session, ids, actor, why, tenant_id)
            changes = [
                _letter_change("dead.resolve", row, DeadLetterState.RESOLVED, Disposition.RESOLVED) for row in rows
            ]
            await audit(session, tenant_id, changes, actor=actor, reason=why)
        moved += [row.task_id for row in rows]
    return DeadLettersMoved(len(moved), len(set(moved)))


def _group_change(fingerprint: str, page: list[commands_sql.DeadLettersOfGroupRow], count: int) -> Change:
    states = [row.state for row in page]
    return Change(
        verb="dead.redrive",
        subject_kind="dead_group",
        subject_id=fingerprint,
        before={state.value: states.count(state) for state in (DeadLetterState.OPEN, DeadLetterState.IGNORED)},
        after={DeadLetterState.RETRY_REQUESTED.value: count},
    )


def _letter_change(
    verb: str,
    row: commands_sql.ResolveDeadLettersRow | commands_sql.IgnoreDeadLettersRow,
    state: DeadLetterState,
    disposition: Disposition,
) -> Change:
    return Change(
        verb=verb,
        subject_kind="dead_letter",
        subject_id=str(row.dead_letter_id),
        before={"state": row.was, "disposition": row.was_disposition},
        after={"state": state.value, "disposition": disposition.value},
    )


async def _unresolved(
    engine: Engine, tenant_id: int, task_id: int | None, fingerprint: str | None, *, with_ignored: bool = False
) -> AsyncIterator[list[dead_letters_sql.UnresolvedDeadLettersRow]]:
    """Yield the unresolved dead letters of a task or group, page by page; `NotFound` if there are none."""
    after = 0
    size = ABANDON_BATCH if with_ignored else REQUEST_BATCH
    while rows := await dead_letters_sql.unresolved_dead_letters(
        engine.database, tenant_id, task_id, fingerprint, after, size, with_ignored
    ):
        after = rows[-1].dead_letter_id
        yield list(rows)
    if not after and fingerprint is not None:
        raise _no_group(fingerprint)
    if not after:
        raise NotFound(f"Task {task_id} has no unresolved dead letter.", code="dead_letter_not_found")


def _no_group(fingerprint: str) -> NotFound:
    return NotFound(
        f"There is no unresolved dead letter with the fingerprint {fingerprint!r}.",
        code="dead_group_not_found",
        advice="See `holdfast dead groups`.",
    )
