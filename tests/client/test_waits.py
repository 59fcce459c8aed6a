"""Several callers may wait for one task."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

import holdfast as hf
from holdfast.client.client import Client
from holdfast.errors import NotFound, WaitTimeout
from holdfast.testing.factories import a_task
from holdfast.testing.idle import run_until_idle

app = hf.App("waits")


@app.action
async def double(number: int) -> int:
    return number * 2


async def test_one_caller_who_gives_up_does_not_strand_the_other(engine):
    app.configure(hf.Settings(url=engine.database.url))
    async with app.client() as client:
        task = await client.enqueue(double, number=21)
        patient = asyncio.ensure_future(task.result(timeout=20))
        with pytest.raises(WaitTimeout):
            await task.result(timeout=0.05)
        await run_until_idle(app, engine)
        assert await patient == 42


async def test_a_wait_too_short_for_a_look_still_says_that_there_is_no_such_task(engine):
    async with Client.over(engine) as client:
        with pytest.raises(NotFound):
            await client.ending("999999999", timeout=0.0)


async def test_who_waits_for_a_result_is_told_of_an_error_that_stays(harness, engine, holdfast_url):
    task = await harness.enqueue(a_task())
    await engine.database.fetch("alter table holdfast.attempt rename to hidden")
    try:
        async with Client(hf.Settings.load({"HOLDFAST_URL": holdfast_url}), {}) as client:
            waiting = asyncio.gather(*(client.result(task.task_id) for _ in range(2)), return_exceptions=True)
            told = await asyncio.wait_for(waiting, 20)
    finally:
        await engine.database.fetch("alter table holdfast.hidden rename to attempt")
    assert [type(one) for one in told] == 2 * [asyncpg.UndefinedTableError]
