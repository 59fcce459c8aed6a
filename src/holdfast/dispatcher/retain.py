"""Retain and vacuum: keep history as long as promised and the hot table small.

Ids come in blocks; a block is one partition of `body` and one of `attempt`. Each day begins a new block, so history
goes by dropping partitions. A block with work that is not over stays, and so does one with a failure that nobody dealt
with: somebody runs it again, calls it resolved (`dead ignore --resolved`) or deletes it (`dead delete`). What lies in
no block is forgotten in batches, from the oldest on; a pass makes a bounded number of them, and says if more are left.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

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

FORGET_BATCH = 10_000
BATCHES_MAX = 10
"""So many batches of a kind in one pass: it takes its turn beside the others, and comes back at once."""
SLOTS_MAX = 1_000
SLOTS_MIN = 10


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks a pass dropped, and whether it left batches to forget."""

    dropped: int
    is_behind: bool


async def retain_once(database: Database, *, days: float) -> Retained:
    """Begin today's block, forget what is older than `days`."""
    is_new_day = await begin_today(database)
    # Events are what completions are counted by.
    await database.fetch(_COUNT_COMPLETED, True)
    is_behind = await _forget_events(database, days)
    for statement, *arguments in ((_FORGET_LETTERS, days), (_FORGET_SIGNALS, days), (_FORGET_REQUEST_KEYS,)):
        is_behind |= await _forget(database, statement, *arguments)
    if is_new_day:
        await database.fetch(_FORGET_WORKERS, days)
    await database.fetch(_FORGET_SLOTS, days, SLOTS_MAX, SLOTS_MIN)
    return Retained(dropped=await drop_old(database, days=days), is_behind=is_behind)


async def _forget_events(database: Database, days: float) -> bool:
    """Forget old events, from the first on; answers whether there are more. Each batch begins behind the last: what was
    deleted is in the way until a vacuum comes."""
    last: tuple[str, int] = ("0", 0)
    for _ in range(BATCHES_MAX):
        row = await database.fetchrow(_FORGET_EVENTS, days, FORGET_BATCH, *last)
        if row is None or row["events"] < FORGET_BATCH:
            return False
        last = (row["xid"], row["seq"])
    return True


async def _forget(database: Database, statement: str, *arguments: Any) -> bool:
    """Forget batch by batch; answers whether there are more."""
    for _ in range(BATCHES_MAX):
        if await database.fetchval(statement, *arguments, FORGET_BATCH) < FORGET_BATCH:
            return False
    return True


async def begin_today(database: Database) -> bool:
    """Give today's ids a block of their own, unless another process is about to; answers whether it made one."""
    is_new_day = False
    async with database.transaction() as session:
        if await session.fetchval(_LOCK_BLOCKS) and await session.fetchval(_BLOCK_AGE):
            await session.fetch(_BEGIN_BLOCK)
            is_new_day = True
    async with database.transaction() as session:
        if await session.fetchval(_LOCK_BLOCKS):
            await session.fetch(_LOCK_SPANS)
            await session.fetch(_ENTER_BLOCK)
    return is_new_day


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
