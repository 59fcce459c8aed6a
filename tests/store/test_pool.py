"""The pool: a turn is never lost, and neither is a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import Unavailable
from holdfast.store.pool import Pool


class Connection:
    def __init__(self) -> None:
        self._is_closed = False

    def is_closed(self) -> bool:
        return self._is_closed

    def terminate(self) -> None:
        self._is_closed = True

    async def close(self, timeout: float) -> None:
        self._is_closed = True


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


async def test_a_closed_pool_says_so_to_whoever_asks_or_waits_and_counts_nothing():
    pool = Pool(connect, 2)
    used, idle = [await pool.acquire(seconds_max=1) for _ in range(2)]
    waits = asyncio.create_task(pool.acquire(seconds_max=60))
    await asyncio.sleep(0)
    pool.release(idle)
    assert await waits is idle
    waits = asyncio.create_task(pool.acquire(seconds_max=60))
    await asyncio.sleep(0)
    await pool.close()
    for asked in (waits, pool.acquire(seconds_max=1), pool.acquire(seconds_max=1)):
        with pytest.raises(Unavailable, match="client_closed"):
            await asked
    for connection in (used, idle):
        pool.release(connection)
        assert connection.is_closed()
    assert (pool.use.open, pool.use.in_use) == (0, 0)


async def test_a_connection_made_while_the_pool_closes_is_nobodys():
    made, may_answer = Connection(), asyncio.Event()

    async def slowly() -> Connection:
        await may_answer.wait()
        return made

    pool = Pool(slowly, 1)
    asked = asyncio.create_task(pool.acquire(seconds_max=60))
    await asyncio.sleep(0)
    await pool.close()
    may_answer.set()
    with pytest.raises(Unavailable, match="client_closed"):
        await asked
    assert (made.is_closed(), pool.use.open) == (True, 0)


async def test_a_connection_that_comes_free_goes_to_the_one_who_waits_and_to_no_newcomer():
    pool = Pool(connect, 1)
    first = await pool.acquire(seconds_max=1)
    waits = asyncio.create_task(pool.acquire(seconds_max=60))
    await asyncio.sleep(0)
    pool.release(first)
    assert pool.take() is None
    newcomer = asyncio.create_task(pool.acquire(seconds_max=60))
    await asyncio.sleep(0)
    assert waits.done()
    assert not newcomer.done()
    assert await waits is first
    pool.release(first)
    assert await newcomer is first


async def test_the_room_of_a_broken_connection_goes_to_the_one_who_waits():
    pool = Pool(connect, 1)
    first = await pool.acquire(seconds_max=1)
    waits = asyncio.create_task(pool.acquire(seconds_max=60))
    await asyncio.sleep(0)
    first.terminate()
    pool.release(first)
    newcomer = asyncio.create_task(pool.acquire(seconds_max=60))
    await asyncio.sleep(0)
    second = await waits
    assert second is not first
    assert (pool.use.open, pool.use.waiting, newcomer.done()) == (1, 1, False)
    pool.release(second)
    assert await newcomer is second


async def test_room_handed_to_one_who_gives_up_goes_on():
    pool = Pool(connect, 1)
    first = await pool.acquire(seconds_max=1)
    gives_up, waits = (asyncio.create_task(pool.acquire(seconds_max=60)) for _ in range(2))
    await asyncio.sleep(0)
    first.terminate()
    pool.release(first)
    gives_up.cancel()
    assert not (await waits).is_closed()
    assert pool.use.open == 1
