"""The raw ceiling: two processes with one connection each complete a batch and claim the next in one transaction.

Run as `python -m holdfast_bench.raw`, it is one of those processes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import msgspec

from holdfast.errors import Unavailable
from holdfast_bench import raw_sql
from holdfast_bench.arena import at_rest
from holdfast_bench.crew import READY_SECONDS_MAX, SETTLE_SECONDS, crew
from holdfast_bench.running import run

BATCHES = (100, 300)
DRAIN_SECONDS_MAX = 600.0


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of one process of the raw ceiling."""

    url: str
    batch: int
    number: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows one process completed, and when it finished, on the machine's monotonic clock."""

    completed: int
    ended_at: float


async def raw_drain_per_s(url: str, tasks: int, *, batch: int, processes: int) -> float:
    """Claim and complete `tasks` stored rows as fast as the database allows; return the rate."""
    await _prepare(url, tasks)
    orders = [Orders(url=url, batch=batch, number=number) for number in range(1, processes + 1)]
    async with crew("holdfast_bench.raw", orders) as members:
        for member in members:
            await member.line(READY_SECONDS_MAX)
        await asyncio.sleep(SETTLE_SECONDS)
        began_at = time.monotonic()
        for member in members:
            member.say("go")
        parts = [msgspec.json.decode(await member.line(DRAIN_SECONDS_MAX), type=Part) for member in members]
    completed = sum(part.completed for part in parts)
    if completed != tasks:
        raise Unavailable(f"The raw ceiling completed {completed} of {tasks} rows.", code="bench_wrong_count")
    return tasks / (max(part.ended_at for part in parts) - began_at)


@asynccontextmanager
async def raw_enqueuing(url: str, *, batch: int) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Yield a function that inserts rows, `batch` at a time, one statement after the other."""
    await _prepare(url, 0)
    connection = await asyncpg.connect(url)
    try:
        statement = await connection.prepare(raw_sql.ENQUEUE)
        rows = [b'{"i": 1}'] * batch

        async def insert(tasks: int) -> None:
            for _ in range(tasks // batch):
                await statement.fetch(rows)

        yield insert
    finally:
        await connection.close()


async def _prepare(url: str, tasks: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(raw_sql.SCHEMA)
        await at_rest(connection)
        if tasks:
            await connection.execute(raw_sql.FILL_BODY, tasks)
            await connection.execute(raw_sql.FILL_LIVE, tasks)
        for statement in raw_sql.TIDY:
            await connection.execute(statement)
    finally:
        await connection.close()


async def drain(orders: Orders) -> None:
    """Run one process of the ceiling: connect, report ready, wait for the start, and work until nothing is left."""
    connection = await asyncpg.connect(orders.url)
    claim = await connection.prepare(raw_sql.CLAIM)
    complete = await connection.prepare(raw_sql.COMPLETE)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    completed = 0
    rows = await claim.fetch(orders.batch, orders.number)
    while rows:
        async with connection.transaction():
            completed += await complete.fetchval(
                [row[0] for row in rows], [row[2] for row in rows], [b"null"] * len(rows)
            )
            rows = await claim.fetch(orders.batch, orders.number)
    print(msgspec.json.encode(Part(completed=completed, ended_at=time.monotonic())).decode(), flush=True)
    await connection.close()


if __name__ == "__main__":
    run(drain(msgspec.json.decode(sys.stdin.readline(), type=Orders)))
