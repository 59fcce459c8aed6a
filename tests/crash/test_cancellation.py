"""A caller may be cancelled at any moment; what it leaves behind must not reach the next user of its connection.

Each round cancels one enqueue a little later, then hands in another task on the same pool: once acknowledged, it must
be there for everybody, not inside a transaction that somebody else began and nobody will commit.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast.authoring.app import App
from holdfast.settings.settings import Settings

app = App("shop")


@app.action
async def charge(number: int) -> int:
    return number


CALLS = {
    "one": lambda client: client.enqueue(charge, number=1),
    "many": lambda client: client.enqueue_many(charge, [{"number": number} for number in range(2500)]),
    "keyed": lambda client: client.enqueue(charge.options(key="order-1"), number=1),
}


@pytest.fixture
async def client(holdfast_url):
    app.configure(Settings(url=holdfast_url))
    async with app.client() as opened:
        await opened.enqueue(charge, number=0)
        yield opened


@pytest.mark.representative(one_in=3)
@pytest.mark.parametrize("call", CALLS)
async def test_a_cancelled_caller_leaves_no_transaction_behind(call, client, engine):
    turns = 0
    while True:
        canceled = asyncio.ensure_future(CALLS[call](client))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_beyond = canceled.done()
        canceled.cancel()
        await asyncio.gather(canceled, return_exceptions=True)
        acknowledged = await client.enqueue(charge, number=2)
        there = await engine.database.fetchval(
            "select count(*) from holdfast.live where task_id = $1", int(acknowledged.task_id)
        )
        assert there == 1, f"lost after a cancel at turn {turns}"
        if is_beyond:
            break
        turns = max(turns + 1, int(turns * 1.2))


async def test_a_cancelled_caller_gives_up_its_place_in_the_line(client):
    """Its turn goes to the next one, who would otherwise wait for a session that lies idle."""
    database = client.engine.database
    async with database.session():
        taken = [await database._acquire() for _ in range(9)]
        first, second = (asyncio.ensure_future(database.fetchval("select 1")) for _ in range(2))
        await asyncio.sleep(0)
        database._pool.release(taken.pop())
        first.cancel()
        assert await asyncio.wait_for(second, 5) == 1
        for connection in taken:
            database._pool.release(connection)


async def test_many_first_bulk_enqueues_do_not_wait_for_one_another(holdfast_url):
    """Each holds a session; none of them may wait for a second one."""
    app.configure(Settings(url=holdfast_url))
    async with app.client() as fresh:
        tasks = await asyncio.gather(*(fresh.enqueue_many(charge, [{"number": n}]) for n in range(30)))
    assert len({task.task_id for batch in tasks for task in batch}) == 30
