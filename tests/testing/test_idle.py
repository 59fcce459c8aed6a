"""`run_until_idle` works off everything it may, and says what is left."""

from __future__ import annotations

import os

import pytest

import holdfast as hf
from holdfast.errors import WaitTimeout
from holdfast.testing.factories import a_task
from holdfast.testing.idle import run_until_idle

app = hf.App("idle")


@app.action(max_retries=2, retry={"jitter_factor": 0.0})
async def flaky(ctx: hf.Context, failures: int) -> int:
    if ctx.attempt <= failures:
        raise hf.Retry(message="again, please")
    return ctx.attempt


@app.action
def plain(number: int) -> int:
    return number * 2


@pytest.fixture
async def client(holdfast_url):
    app.configure(hf.Settings(url=holdfast_url))
    async with app.client() as opened:
        yield opened


async def test_an_idle_app_has_nothing_to_do(engine):
    summary = await run_until_idle(app, engine)
    assert (summary.completed, summary.waiting) == (0, 0)


async def test_everything_queued_runs(engine, client):
    tasks = await client.enqueue_many(plain, [{"number": number} for number in range(20)])
    assert (await run_until_idle(app, engine)).completed == 20
    assert [await task.result() for task in tasks] == [number * 2 for number in range(20)]


async def test_without_a_clock_a_retry_that_waits_is_left(engine, client):
    await client.enqueue(flaky, failures=1)
    summary = await run_until_idle(app, engine)
    assert (summary.completed, summary.retried, summary.waiting) == (0, 1, 1)


async def test_with_a_clock_retries_run_too(engine, client, clock):
    await client.enqueue(flaky, failures=2)
    summary = await run_until_idle(app, engine, clock=clock)
    assert (summary.completed, summary.retried, summary.waiting) == (1, 2, 0)


async def test_a_task_that_fails_for_good_is_counted(engine, client, clock):
    await client.enqueue(flaky, failures=9)
    assert (await run_until_idle(app, engine, clock=clock)).failed == 1


async def test_work_that_the_app_cannot_run_is_named(engine, harness):
    await harness.enqueue(a_task(action="other.action"))
    with pytest.raises(WaitTimeout, match="1 tasks"):
        await run_until_idle(app, engine, seconds_max=0.2)


async def test_what_asks_for_a_process_of_its_own_runs_beside_the_test(engine):
    apart = hf.App("apart", settings=hf.Settings(url=engine.database.url))
    apart.action(name="thread", isolation="process", memory_bytes_max=2**30)(os.getpid)

    @apart.action(isolation="process")
    async def coroutine(ctx: hf.Context) -> int:
        return os.getpid()

    async with apart.client() as client:
        tasks = [await client.enqueue(action) for action in apart.actions.values()]
        await run_until_idle(apart, engine)
        assert [await task.result(timeout=5) for task in tasks] == [os.getpid()] * 2
        again = await client.enqueue(coroutine)
        async with apart.processor() as processor:
            assert (await processor.process_once()).task_id == again.task_id
        assert await again.result(timeout=5) == os.getpid()
