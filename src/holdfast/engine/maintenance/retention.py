"""Retention and vacuum: keep history as long as promised, and the hot table small.

Ids are assigned in blocks; a block is one partition each of `body`, `attempt` and `node`. Each day begins a new block,
so history is deleted by dropping partitions. Tasks that have not ended stay, and so do unresolved failures, until they
are re-driven, resolved (`dead ignore --resolved`) or deleted (`dead delete`). Rows that stay are copied into new
partitions for the same ids, and the rest of their block is dropped. Rows outside of blocks are deleted in batches,
oldest first; a pass makes a bounded number of batches and reports whether more are left.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from holdfast.errors import HoldfastError
from holdfast.store.database import LOCK_CONFLICT, Database, Session
from holdfast.store.sql.dead_letters import sweep as sweep_sql
from holdfast.store.sql.flows import signals as signals_sql
from holdfast.store.sql.identity import requests as requests_sql
from holdfast.store.sql.maintenance import retention as retention_sql
from holdfast.store.sql.queries import counts as counts_sql
from holdfast.store.sql.schedules import schedules as schedules_sql

log = logging.getLogger("holdfast.retain")


FORGET_BATCH = 10_000
BATCHES_MAX = 10
"""Batches of one kind per pass, so that the other kinds have their turn; the loop repeats at once."""
KEPT_MAX = 100_000
"""How many ids of an old block are copied at most, because readers wait meanwhile. If more are needed, the whole block
stays."""
SLOTS_MAX = 1_000
SLOTS_MIN = 10


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks a pass dropped and how many it compacted, and whether batches are left."""

    dropped: int
    copied: int = 0
    is_behind: bool


async def retain_once(database: Database, *, days: float) -> Retained:
    """Begin today's block, and delete what is older than `days`."""
    is_new_day = await begin_today(database)
    # Count completions before deleting the events that they are counted from.
    await counts_sql.count_completed(database, True)
    is_behind = await _forget_events(database, days)
    is_behind |= await _forget(partial(sweep_sql.delete_old_dead_letters, database, days))
    is_behind |= await _forget(partial(requests_sql.delete_old_request_keys, database))
    is_behind |= await _forget_signals(database, days)
    if is_new_day:
        await retention_sql.delete_old_workers(database, days)
    await schedules_sql.delete_old_slots(database, days, SLOTS_MAX, SLOTS_MIN)
    done = await fold_old(database, days=days)
    return Retained(dropped=done.dropped, copied=done.copied, is_behind=is_behind)


async def _forget_events(database: Database, days: float) -> bool:
    """Delete old events, oldest first; return whether there are more. Each batch begins after the last, because deleted
    rows slow the scan down until a vacuum."""
    last: tuple[str, int] = ("0", 0)
    for _ in range(BATCHES_MAX):
        row = await retention_sql.delete_old_events(database, days, FORGET_BATCH, *last)
        if row is None or row.events < FORGET_BATCH:
            return False
        last = (row.xid, row.seq)
    return True


async def _forget_signals(database: Database, days: float) -> bool:
    """Delete old signals, oldest first; return whether there are more. Signals that an open run may wait for stay, so
    each batch begins after the last."""
    last = 0
    for _ in range(BATCHES_MAX):
        row = await signals_sql.delete_old_signals(database, days, FORGET_BATCH, last)
        if row.signals < FORGET_BATCH:
            return False
        last = row.last
    return True


async def _forget(delete: Callable[[int], Awaitable[int]]) -> bool:
    """Delete batch by batch; return whether there are more. `delete` takes the size of a batch."""
    for _ in range(BATCHES_MAX):
        if await delete(FORGET_BATCH) < FORGET_BATCH:
            return False
    return True


async def begin_today(database: Database) -> bool:
    """Begin a block for today's ids, unless another process is doing it. Return whether this one did."""
    is_new_day = False
    async with database.transaction() as session:
        if await retention_sql.lock_blocks(session) and await retention_sql.block_age(session):
            await retention_sql.begin_block(session)
            is_new_day = True
    async with database.transaction() as session:
        if await retention_sql.lock_blocks(session):
            await retention_sql.lock_spans(session)
            await retention_sql.enter_block(session)
    return is_new_day


class _InUse(Exception):
    """A task of a block was re-driven while the block was about to be dropped."""


async def drop_old(database: Database, *, days: float) -> int:
    """Drop blocks of finished history; return how many."""
    return (await fold_old(database, days=days)).dropped


async def fold_old(database: Database, *, days: float) -> Retained:
    """Drop or compact old blocks, each in its own short transaction."""
    done = {"dropped": 0, "copied": 0}
    for row in await retention_sql.old_blocks(database, days):
        try:
            async with database.transaction() as session:
                if not await retention_sql.lock_blocks(session):
                    break
                came_to = await _fold(session, row.block, days)
        except _InUse:
            break
        except LOCK_CONFLICT as error:
            # Another transaction has the lock; the next pass tries again.
            log.warning("old history is in use and stays for now: %s", error)
            break
        if came_to in done:
            done[came_to] += 1
    return Retained(**done, is_behind=False)


async def _fold(session: Session, block: int, days: float) -> str:
    await retention_sql.wait_briefly(session)
    came_to = await retention_sql.compact_block(session, block, days, KEPT_MAX)
    if came_to == "in use":
        raise _InUse
    return str(came_to)


async def vacuum_once(database: Database) -> bool:
    """Vacuum the hot table if it changed much: autovacuum runs once a minute, a busy queue turns over in seconds."""
    if not await retention_sql.live_is_dirty(database):
        return False
    try:
        await retention_sql.vacuum_live(database)
    except HoldfastError:
        return False
    return True
