"""Retain and vacuum: keep history as long as promised and the hot table small.

Ids come in blocks; a block is one partition of `body` and one of `attempt`. Each day begins a new block, so history
goes by dropping partitions. A block with work that is not over, or that failed, stays.
"""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.store.database import Database
from holdfast.store.statements import sql

_BLOCK_AGE = sql("block_age")
_BEGIN_BLOCK = sql("begin_block")
_ENTER_BLOCK = sql("enter_block")
_OLD_BLOCKS = sql("old_blocks")
_DROP_BLOCK = sql("drop_block")
_LOCK_BLOCKS = sql("lock_blocks")
_FORGET_EVENTS = sql("forget_events")
_FORGET_WORKERS = sql("forget_workers")
_VACUUM_LIVE = sql("vacuum_live")
_LIVE_IS_DIRTY = sql("live_is_dirty")

EVENTS_BATCH = 10_000


async def retain_once(database: Database, *, days: float) -> int:
    """Begin today's block, drop what is older than `days`; answers how many blocks were dropped."""
    async with database.transaction() as session:
        if not await session.fetchval(_LOCK_BLOCKS):
            return 0
        if await session.fetchval(_BLOCK_AGE):
            await session.fetch(_BEGIN_BLOCK)
        blocks = [row["block"] for row in await session.fetch(_OLD_BLOCKS, days)]
        for block in blocks:
            await session.fetch(_DROP_BLOCK, block)
        await session.fetch(_FORGET_EVENTS, days, EVENTS_BATCH)
        await session.fetch(_FORGET_WORKERS, days)
    await _enter_block(database)
    return len(blocks)


async def _enter_block(database: Database) -> None:
    """After the commit, in a transaction of its own; a pass that dies in between is made up for by the next."""
    async with database.transaction() as session:
        if await session.fetchval(_LOCK_BLOCKS):
            await session.fetch(_ENTER_BLOCK)


async def vacuum_once(database: Database) -> bool:
    """Vacuum the hot table if it changed much: autovacuum comes once a minute, a busy queue turns over in seconds."""
    if not await database.fetchval(_LIVE_IS_DIRTY):
        return False
    try:
        await database.fetch(_VACUUM_LIVE)
    except HoldfastError:
        return False
    return True
