"""The pool: a turn is never lost, and neither is a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.store.pool import Pool


class Connection:
    def is_closed(self) -> bool:
        return False


async def connect() -> Connection:
    return Connection()


async def test_a_cancellation_that_comes_with_the_turn_is_not_lost_and_the_turn_goes_on():
    pool = Pool(connect, 1)
    first = await pool.acquire(seconds_max=1)
    second, third = (asyncio.create_task(pool.acquire(seconds_max=60)) for _ in range(2))
    await asyncio.sleep(0)
    pool.release(first)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert await third is first


async def test_waiting_ends_in_time():
    pool = Pool(connect, 1)
    first = await pool.acquire(seconds_max=1)
    with pytest.raises(TimeoutError):
        await pool.acquire(seconds_max=0.001)
    pool.release(first)
    assert await pool.acquire(seconds_max=1) is first
