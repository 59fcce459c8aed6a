"""Cut over, roll back and drop generations of datasets.

A cut-over swaps the view in one transaction: a reader sees the old generation or the new one, whole. Rolling back and
dropping mark the generation first; a pass, safe to repeat, then cancels its unfinished work and drops its tables. Lock
order: tasks, dataset, generations, view, audit log. No function here waits for a task while it has other locks.
Operator requests are audited; a task that cuts over with its own completion is not.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import msgspec

from holdfast.core.datasets.dataset import unfinished_words, view_in_use
from holdfast.engine.audit import Change, audit
from holdfast.engine.for_each_row import all_in_turn
from holdfast.engine.lifecycle.runs.commands import cancel_run
from holdfast.engine.lifecycle.tasks.cancel import cancel_in
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import LOCK_CONFLICT, LOCK_TIMEOUT, STILL_USED, Database, Session
from holdfast.store.sql.datasets import datasets as datasets_sql
from holdfast.store.sql.datasets import generations as generations_sql

CANCEL_BATCH = 1_000
LEAVING_BATCH = 100
_WORDS = {"b": "being built", "c": "current", "o": "superseded", "r": "rolled back", "d": "dropped"}


class CutoverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The actor and reason of a change of a generation. A requesting task, and its run, do not count as unfinished."""

    actor: str
    reason: str
    task_id: int | None = None
    run_id: int | None = None


async def cut_over(
    database: Database, tenant_id: int, name: str, version: int, asking: CutoverRequest, *, is_forced: bool = False
) -> bool:
    """Make a version visible to readers, at once and whole. Return whether another version was current before.

    `Conflict` while work on the version is unfinished or failed, unless forced; or if readers lock the view for too
    long.
    """
    try:
        async with database.transaction() as session:
            generation = await _locked(session, tenant_id, name, version)
            if generation.state == "c":
                return False
            if generation.state not in ("b", "o"):
                raise _wrong_state(generation, "cut over")
            left = await cut_over_in(session, generation, asking, is_forced=is_forced)
            if left is not None:
                raise Conflict(
                    f"Version {version} of {name} cannot be cut over: {unfinished_words(*left)}.",
                    code="dataset_build_unfinished",
                    advice=f"Wait for them, retry or cancel them, or force it (`holdfast dataset show {name}`).",
                )
            await _record(session, "dataset.cut_over", tenant_id, generation, {"state": _WORDS["c"]}, asking)
    except (LOCK_TIMEOUT, STILL_USED) as error:
        raise _in_use(name, error) from error
    return True


async def cut_over_in(
    session: Session, generation: datasets_sql.LockGenerationsRow, asking: CutoverRequest, *, is_forced: bool = False
) -> tuple[int, int] | None:
    """Cut over in the caller's transaction, under its locks. Return the unfinished and failed builds if they forbid
    it."""
    unfinished, failed = await generations_sql.builds_left(
        session, generation.generation_id, asking.task_id, asking.run_id
    )
    if (unfinished or failed) and not is_forced:
        return unfinished, failed
    await _show(session, generation.dataset_id, generation.version, asking)
    return None


async def _show(session: Session, dataset_id: int, version: int, asking: CutoverRequest) -> None:
    await generations_sql.supersede(session, dataset_id)
    assert await generations_sql.cut_over(session, dataset_id, version, asking.actor, asking.reason)
    await generations_sql.refresh_dataset_view(session, dataset_id, False)


async def roll_back(
    database: Database, tenant_id: int, name: str, version: int, asking: CutoverRequest, *, is_kept: bool = False
) -> int | None:
    """Take a version out of use; the previous one replaces the current. Return the version shown instead.

    `finish_rollbacks_once` does the remaining work, in this or any server process. `is_kept` keeps the tables.
    """
    try:
        async with database.transaction() as session:
            generation = await _locked(session, tenant_id, name, version)
            dataset_id, state = generation.dataset_id, generation.state
            if state not in ("b", "c"):
                raise _wrong_state(generation, "rolled back")
            shown = await generations_sql.previous_generation(session, dataset_id) if state == "c" else None
            if state == "c" and shown is None:
                raise Conflict(
                    f"Version {version} of {name} cannot be rolled back: there is no earlier one to show.",
                    code="dataset_nothing_before",
                    advice="Cut over to another version first.",
                )
            what = (dataset_id, version, [state.encode()], is_kept, asking.actor, asking.reason)
            assert await generations_sql.roll_back(session, *what)
            if shown is not None:
                await _show(session, dataset_id, shown, asking)
            after = {"state": _WORDS["r"], "shown": shown}
            await _record(session, "dataset.roll_back", tenant_id, generation, after, asking)
    except (LOCK_TIMEOUT, STILL_USED) as error:
        raise _in_use(name, error) from error
    return None if shown is None else int(shown)


async def drop(database: Database, tenant_id: int, name: str, version: int, asking: CutoverRequest) -> None:
    """Drop the tables of a superseded or kept version."""
    async with database.transaction() as session:
        generation = await _locked(session, tenant_id, name, version)
        states = [b"o", b"r"]
        what = (generation.dataset_id, version, states, False, asking.actor, asking.reason)
        if not await generations_sql.roll_back(session, *what):
            raise _wrong_state(generation, "dropped")
        await _record(session, "dataset.drop", tenant_id, generation, {"state": _WORDS["d"]}, asking)


async def _record(
    session: Session,
    verb: str,
    tenant_id: int,
    generation: datasets_sql.LockGenerationsRow,
    after: dict[str, Any],
    asking: CutoverRequest,
) -> None:
    before = {"state": _WORDS[generation.state]}
    subject = f"{generation.name}:{generation.version}"
    change = Change(verb=verb, subject_kind="dataset", subject_id=subject, before=before, after=after)
    await audit(session, tenant_id, [change], actor=asking.actor, reason=asking.reason)


async def finish_rollbacks_once(database: Database, catalog: Catalog, *, grace_seconds: float) -> Notifications:
    """Cancel the unfinished work of generations that were rolled back, and drop the tables that are not kept."""
    everything = [NO_NOTIFICATIONS]

    async def finish(row: generations_sql.GenerationsLeavingRow) -> None:
        reason = row.reason or "its dataset was rolled back"
        who = {"actor": row.actor, "reason": reason, "grace_seconds": grace_seconds}
        while (
            notifications := await _cancel_builds(database, catalog, row.tenant_id, row.generation_id, who)
        ) is not None:
            everything.append(notifications)
        if not row.is_kept:
            await _unmake(database, row.generation_id)

    await all_in_turn(
        partial(generations_sql.generations_leaving, database),
        finish,
        number=lambda row: row.generation_id,
        limit=LEAVING_BATCH,
        what="rollbacks",
    )
    return reduce(Notifications.and_, everything)


async def _cancel_builds(
    database: Database, catalog: Catalog, tenant_id: int, generation_id: int, who: dict[str, Any]
) -> Notifications | None:
    """Cancel one batch of tasks and runs; return None if there was nothing left to cancel."""
    rows = await generations_sql.builds_to_cancel(database, generation_id, CANCEL_BATCH)
    async with database.transaction() as session:
        tasks = [row.task_id for row in rows if not row.is_run]
        canceled = await cancel_in(session, catalog, tenant_id, tasks, **who)
    notifications, is_changed = canceled.notifications, bool(canceled.states)
    for run_id in (row.task_id for row in rows if row.is_run):
        try:
            notifications = notifications.and_(await cancel_run(database, catalog, tenant_id, run_id, **who))
            is_changed = True
        except Conflict:
            continue  # it ended meanwhile
    return notifications if is_changed else None


async def _unmake(database: Database, generation_id: int) -> None:
    """Drop the tables of one generation. If they are in use, the next pass does it."""
    try:
        async with database.transaction() as session:
            if await generations_sql.lock_leaving(session, generation_id):
                await generations_sql.delete_stages(session, generation_id)
                await generations_sql.drop_generation_tables(session, generation_id)
                assert await generations_sql.end_generation(session, generation_id)
    except LOCK_CONFLICT:
        return


async def _locked(session: Session, tenant_id: int, name: str, version: int) -> datasets_sql.LockGenerationsRow:
    """Return one generation, with its dataset and all its generations locked."""
    dataset = await datasets_sql.lock_dataset(session, tenant_id, name)
    if dataset is None:
        raise NotFound(
            f"There is no dataset {name!r}.", code="dataset_not_found", advice="See `holdfast dataset list`."
        )
    rows = await datasets_sql.lock_generations(session, [], [dataset.dataset_id])
    for row in rows:
        if row.version == version:
            return row
    raise NotFound(
        f"{name} has no version {version}.",
        code="dataset_version_not_found",
        advice=f"See `holdfast dataset show {name}`.",
    )


def _wrong_state(generation: datasets_sql.LockGenerationsRow, word: str) -> Conflict:
    state = _WORDS[generation.state]
    return Conflict(
        f"Version {generation.version} of {generation.name} cannot be {word}: it is {state}.",
        code="dataset_wrong_state",
        advice=f"See `holdfast dataset show {generation.name}`.",
        state=state,
    )


def _in_use(name: str, error: Exception) -> HoldfastError:
    if isinstance(error, STILL_USED):
        failure = view_in_use(name, str(getattr(error, "detail", error)))
        return Conflict(
            failure.message,
            code=failure.code,
            advice="Drop what depends on it, cut over, and make it again.",
        )
    return Conflict(
        f"Readers of {name} held it longer than a cut-over may wait.", code="dataset_busy", advice="Try again."
    )
