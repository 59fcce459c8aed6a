"""Stage rows until their attempt completes, and delete staged rows of attempts that will not complete.

A part belongs to one attempt by its lease. Each batch of rows is stored with its count in one short transaction, so a
batch whose response was lost can be distinguished from one that never arrived. Readers never see staged rows.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec

from holdfast.core.datasets.dataset import Mode
from holdfast.engine.datasets.declare import Generation
from holdfast.errors import Conflict, HoldfastError, Invalid, LeaseLost, Unavailable
from holdfast.store.database import REFUSED, Database
from holdfast.store.sql.datasets import datasets as datasets_sql

SWEEP_BATCH = 100
FORGET_BATCH = 10_000
TRIES = 4
TRY_AGAIN_SECONDS = 0.2


class AttemptLease(msgspec.Struct, frozen=True):
    """The staging attempt, and the lease token that proves it."""

    task_id: int
    attempt: int
    lease_token: Any


class StagedPart(msgspec.Struct):
    """One `append` or `replace` of one attempt, and how many of its rows are staged."""

    lease: AttemptLease
    generation: Generation
    mode: Mode
    number: int
    partition: str
    rows: int = 0


async def open_part(database: Database, part: StagedPart) -> None:
    """Begin a part; `LeaseLost` if the attempt is not current, `Conflict` if the generation accepts no rows."""
    lease = (part.lease.task_id, part.lease.attempt, part.lease.lease_token)
    generation_id = part.generation.generation_id
    what = (*lease, part.number, generation_id, str(part.mode), part.partition)
    if not await _repeated(lambda: datasets_sql.open_stage(database, *what)):
        raise await _refused(database, part, lease)


async def stage_batch(database: Database, part: StagedPart, records: list[tuple[Any, ...]]) -> None:
    """Stage one batch of records. Repeats until the batch is known to be stored once, or the server stays
    unreachable."""
    await _repeated(lambda: _stage_once(database, part, records))
    part.rows += len(records)


async def _stage_once(database: Database, part: StagedPart, records: list[tuple[Any, ...]]) -> None:
    dataset, here = part.generation.dataset, (part.lease.task_id, part.lease.lease_token, part.number)
    columns = [*dataset.columns, "_task_id", "_lease", "_part", "_row"]
    whole = [(*record, *here, part.rows + nth) for nth, record in enumerate(records, start=1)]
    try:
        async with database.transaction() as session:
            if await datasets_sql.grow_stage(session, *here, part.rows, len(records)):
                await session.copy(dataset.schema, dataset.stage, columns, whole)
                return
    except REFUSED as error:
        raise Invalid(
            f"A row of {dataset.name} from {part.rows + 1} to {part.rows + len(records)} cannot be stored: {error}.",
            code="dataset_row_invalid",
        ) from error
    if await datasets_sql.read_stage(database, *here) != part.rows + len(records):
        raise _lease_lost(part)


async def _repeated(write: Any) -> Any:
    """Repeat a write after an unknown outcome; all writes here are idempotent."""
    for left in reversed(range(TRIES)):
        try:
            return await write()
        except Unavailable as error:
            if not left:
                raise Unavailable(
                    f"Rows could not be staged: {error.detail}", code="connection_error", advice=error.advice
                ) from error
        await asyncio.sleep(TRY_AGAIN_SECONDS)
    raise AssertionError("unreachable")


async def _refused(database: Database, part: StagedPart, lease: tuple[int, int, UUID]) -> HoldfastError:
    row = await datasets_sql.why_not_staged(database, *lease, part.generation.generation_id)
    dataset = part.generation.dataset
    if row.state in ("b", "c"):
        return _lease_lost(part)
    if row.state == "o":
        return Conflict(
            f"Version {dataset.version} of {dataset.name} is no longer current.",
            code="dataset_superseded",
            advice="Start workers with the current version.",
        )
    return Conflict(
        f"Version {dataset.version} of {dataset.name} was rolled back.",
        code="dataset_rolled_back",
        advice="Declare a new version.",
    )


def _lease_lost(part: StagedPart) -> LeaseLost:
    return LeaseLost(
        f"Attempt {part.lease.attempt} of task {part.lease.task_id} is not current any more: it stages nothing.",
        advice="Nothing was stored; the attempt that followed does the work.",
    )


async def sweep_stages_once(database: Database) -> int:
    """Delete the staged rows of attempts that have ended or lost their lease. Return how many parts were deleted."""
    async with database.transaction() as session:
        stale = await datasets_sql.stale_stages(session, SWEEP_BATCH)
        for row in stale:
            await datasets_sql.drop_staged(session, row.generation_id, row.task_id, row.lease_token, row.part)
            await datasets_sql.delete_stage(session, row.task_id, row.lease_token, row.part)
    return len(stale)


async def forget_commits_once(database: Database, *, days: float) -> bool:
    """Delete a batch of commit records that exceed their retention; their rows stay. Return whether there are more."""
    return bool(await datasets_sql.delete_old_commits(database, days, FORGET_BATCH) == FORGET_BATCH)
