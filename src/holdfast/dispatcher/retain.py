"""Retain and vacuum: keep history as long as promised and the hot table small.

Ids come in blocks; a block is one partition of `body` and one of `attempt`. Each day begins a new block, so history
goes by dropping partitions. A block with work that is not over stays, and so does one with a failure that nobody dealt
with: somebody runs it again, calls it resolved (`dead ignore --resolved`) or deletes it (`dead delete`).
"""

from __future__ import annotations

import logging

from holdfast.errors import HoldfastError
from holdfast.store.database import IN_THE_WAY, Database, Session
from holdfast.store.statements import sql

log = logging.getLogger("holdfast.retain")

_BLOCK_AGE = sql("block_age")
_COUNT_COMPLETED = sql("count_completed")
_BEGIN_BLOCK = sql("begin_block")
_LOCK_SPANS = sql("lock_spans")
_ENTER_BLOCK = sql("enter_block")
_WAIT_BRIEFLY = sql("wait_briefly")
_OLD_BLOCKS = sql("old_blocks")
_LOCK_OLD_RUNS = sql("lock_old_runs")
_FORGET_COMPLETED_RUNS = sql("forget_completed_runs")
_FORGET_ENDED = sql("forget_ended")
_DROP_BLOCK = sql("drop_block")
_LOCK_BLOCKS = sql("lock_blocks")
_FORGET_EVENTS = sql("forget_events")
_FORGET_WORKERS = sql("forget_workers")
_FORGET_LETTERS = sql("forget_letters")
_FORGET_SLOTS = sql("forget_slots")
_FORGET_SIGNALS = sql("forget_signals")
_FORGET_REQUEST_KEYS = sql("forget_request_keys")
_VACUUM_LIVE = sql("vacuum_live")
_LIVE_IS_DIRTY = sql("live_is_dirty")

EVENTS_BATCH = 10_000
LETTERS_BATCH = 10_000
REQUEST_KEYS_BATCH = 10_000
SLOTS_MAX = 1_000
SLOTS_MIN = 10


async def retain_once(database: Database, *, days: float) -> int:
    """Begin today's block, forget what is older than `days`; answers how many blocks were dropped."""
    await begin_today(database)
    # Events are what completions are counted by.
    await database.fetch(_COUNT_COMPLETED, True)
    await database.fetch(_FORGET_EVENTS, days, EVENTS_BATCH)
    await database.fetch(_FORGET_WORKERS, days)
    await database.fetch(_FORGET_LETTERS, days, LETTERS_BATCH)
    await database.fetch(_FORGET_SLOTS, days, SLOTS_MAX, SLOTS_MIN)
    await database.fetch(_FORGET_SIGNALS, days)
    await database.fetch(_FORGET_REQUEST_KEYS, REQUEST_KEYS_BATCH)
    return await drop_old(database, days=days)


async def begin_today(database: Database) -> None:
    """Give today's ids a block of their own, unless another process is about to."""
    async with database.transaction() as session:
        if await session.fetchval(_LOCK_BLOCKS) and await session.fetchval(_BLOCK_AGE):
            await session.fetch(_BEGIN_BLOCK)
    async with database.transaction() as session:
        if await session.fetchval(_LOCK_BLOCKS):
            await session.fetch(_LOCK_SPANS)
            await session.fetch(_ENTER_BLOCK)


class _InUse(Exception):
    """Somebody ran something of a block again while it was about to be dropped."""


async def drop_old(database: Database, *, days: float) -> int:
    """Drop blocks of finished history, each in its own short transaction."""
    dropped = 0
    while True:
        try:
            async with database.transaction() as session:
                if not await session.fetchval(_LOCK_BLOCKS):
                    return dropped
                row = await session.fetchrow(_OLD_BLOCKS, days)
                if row is None:
                    return dropped
                await _drop(session, row["block"], days)
        except _InUse:
            return dropped
        except IN_THE_WAY as error:
            # Whoever was quicker goes first; the next pass looks again.
            log.warning("old history is in use and stays for now: %s", error)
            return dropped
        dropped += 1


async def _drop(session: Session, block: int, days: float) -> None:
    """Drop a block whose ends nobody can take away any more; `_InUse` when somebody did before."""
    await session.execute(_WAIT_BRIEFLY)
    await session.fetch(_LOCK_OLD_RUNS, block)
    await session.fetch(_FORGET_COMPLETED_RUNS, block)
    await session.fetch(_FORGET_ENDED, block, days)
    if block not in {row["block"] for row in await session.fetch(_OLD_BLOCKS, days)}:
        raise _InUse
    await session.fetch(_DROP_BLOCK, block)


async def vacuum_once(database: Database) -> bool:
    """Vacuum the hot table if it changed much: autovacuum comes once a minute, a busy queue turns over in seconds."""
    if not await database.fetchval(_LIVE_IS_DIRTY):
        return False
    try:
        await database.fetch(_VACUUM_LIVE)
    except HoldfastError:
        return False
    return True
