"""Waiting in tests: until something is so, and not longer. Where somebody gives a signal, await that instead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.store.database import Database

T = TypeVar("T")

SECONDS_MAX = 30.0
PAUSE_SECONDS = 0.01

BLOCKED = """
select count(*)
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
where a.datname = current_database() and not l.granted
"""
"""How many statements wait for a lock in this database. From `pg_locks`, because `pg_stat_activity` shows what a
session waits for only to its own role: behind the wall of a tenant it is null, and a test would wait for ever."""


async def eventually(
    condition: Callable[[], Any], *, seconds_max: float = SECONDS_MAX, pause_seconds: float = PAUSE_SECONDS
) -> Any:
    """Wait until a condition (or a coroutine function) gives something true, and give it back."""
    deadline = time.monotonic() + seconds_max
    while True:
        found = condition()
        found = await found if isinstance(found, Awaitable) else found
        if found:
            return found
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(pause_seconds)


def poll(condition: Callable[[], T], *, seconds_max: float = 60.0) -> T:
    """The same for a test that blocks; returns the value that ended the wait."""
    deadline = time.monotonic() + seconds_max
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(PAUSE_SECONDS)
    return found


async def waits(database: Database, verb: asyncio.Future[Any]) -> bool:
    """Wait until a verb runs into a lock that somebody holds, or is over without; tell whether it waits."""
    while not verb.done():
        if await database.fetchval(BLOCKED):
            return True
    return False
