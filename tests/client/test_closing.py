"""A client that is closed says so, to whoever asks and to whoever waits, and can be opened again."""

from __future__ import annotations

import asyncio

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, Invalid, Unavailable


async def test_a_closed_client_says_so_and_can_be_opened_again(app):
    client = app.client()
    async with client:
        task = await client.enqueue("shop.charge", order=1)
        run = await client.start("shop.nightly", order=1)
    for asked in (
        lambda: client.enqueue("shop.charge", order=2),
        lambda: client.enqueue_many("shop.charge", [{"order": 2}]),
        lambda: client.start("shop.nightly", order=2),
        lambda: client.cancel(task.task_id),
        task.result,
        task.why,
        run.wait,
        run.show,
    ):
        with pytest.raises(Invalid) as refused:
            await asked()
        assert refused.value.code == "client_closed"
    async with client:
        assert (await task.why()).state == "queued"
        assert int((await client.enqueue("shop.charge", order=3)).task_id) > int(task.task_id)
        assert int((await client.start("shop.nightly", order=3)).run_id) > int(run.run_id)


async def test_a_client_that_could_not_be_opened_holds_nothing_and_says_so(app):
    app.configure(hf.Settings(url="postgresql://127.0.0.1:1/nowhere"))
    client = app.client()
    for _ in range(2):
        with pytest.raises(Unavailable):
            await client.__aenter__()
    with pytest.raises(Invalid, match="client_closed"):
        await client.enqueue("shop.charge", order=1)


async def test_whoever_waits_when_the_client_closes_is_told(app):
    waiting: list[asyncio.Task[object]] = []
    async with app.client() as client:
        task, run = await client.enqueue("shop.charge", order=1), await client.start("shop.nightly", order=1)
        waiting += [asyncio.create_task(wait()) for wait in (task.result, task.wait, run.wait, run.result)]
        while len(client._waits._waiting) < 2 or client._waits._watch is None:
            await client.engine.database.fetch("select 1")
        # One more, which has not even asked the database yet.
        waiting.append(asyncio.create_task(task.result(timeout=60)))
        await asyncio.sleep(0)
    told = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
    assert [type(one) for one in told] == 5 * [Unavailable]
    assert {one.code for one in told if isinstance(one, HoldfastError)} == {"client_closed"}


async def test_a_ring_after_the_end_opens_no_connection(holdfast_url):
    async with Engine(holdfast_url, hf.Settings()) as engine:
        notifier = engine.notifier
    notifier.notify(lanes=[1])
    await notifier.flush()
    assert notifier._session is None
