"""Attempts that will not stop: nothing is reported of them while they run, and their process makes room."""

from __future__ import annotations

import asyncio
import time

import pytest

import holdfast as hf
from holdfast.errors import TaskFailed


def local_app() -> hf.App:
    return hf.App("local")


@pytest.mark.representative(one_in=2)
@pytest.mark.crash
@pytest.mark.parametrize("name", ["refuse_to_stop_once", "overrun_in_thread_once"])
async def test_an_attempt_past_its_grace_ends_its_process_and_is_tried_again(fleet, client, journal, is_gone, name):
    one = fleet()
    task = await client.enqueue(f"fleet.{name}")
    assert await task.result(20) == 2
    first, second = journal.entries("start")
    assert is_gone(first.pid) and second.pid != first.pid
    assert "an attempt did not stop in time; ending this process" in one.log
    assert "exit code 70 (overdue)" in one.log


@pytest.mark.crash
async def test_a_blocked_event_loop_keeps_its_lease(fleet, client, journal):
    fleet()
    task = await client.enqueue("fleet.block_loop", seconds=2.5)
    assert await task.result(20) == 1
    assert [entry.word for entry in journal.entries()] == ["start", "stop"]


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_a_blocked_event_loop_keeps_its_lease is fast"
)
@pytest.mark.crash
async def test_the_neighbours_of_an_overrun_are_not_lost(fleet, client, journal, gate):
    fleet()
    overrun = await client.enqueue("fleet.overrun_in_thread_once")
    await journal.first("start")
    neighbour = await client.enqueue("fleet.wait_for", path=str(gate))
    assert await overrun.result(20) == 2
    gate.touch()
    assert await neighbour.result(20) == "done"


async def test_a_thread_that_runs_over_is_timed_out_only_once_it_ended(running_worker, client_of, gate):
    app = local_app()
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.action(timeout=0.05, max_retries=0)
    def overrun(ctx: hf.Context) -> None:
        while not gate.exists():
            if ctx.is_canceled:
                loop.call_soon_threadsafe(told.set)
            time.sleep(0.005)

    @app.action
    async def other() -> int:
        return 1

    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue(overrun)
        await told.wait()
        # A report of the first would go no later than that of the other.
        assert await (await client.enqueue(other)).result(20) == 1
        assert await client.engine.database.fetchval("select state::text from holdfast.live") == "r"
        gate.touch()
        with pytest.raises(TaskFailed, match="timed out"):
            await task.result(20)


async def test_canceling_during_the_grace_of_a_thread_does_not_end_the_wait_for_it(
    running_worker, client_of, gate, eventually
):
    app = local_app()
    ended = []

    @app.action(timeout=0.05)
    def overrun(ctx: hf.Context) -> None:
        while not gate.exists():
            time.sleep(0.005)
        ended.append(ctx.is_canceled)

    async with client_of(app) as client, running_worker(app=app) as worker:
        task = await client.enqueue(overrun)
        held = (await eventually(lambda: list(worker.state.running.values())))[0]
        await eventually(lambda: held.stop is not None and held.stop.is_set())
        await client.cancel(task.task_id)
        await eventually(lambda: held.stop_reason)
        assert not ended and worker.state.running, "the thread still runs, so the attempt is still held"
        gate.touch()
        assert await task.wait(20) == "canceled"


async def test_an_action_may_time_out_by_itself(running_worker, client_of):
    app = local_app()

    @app.action(timeout=60, max_retries=0)
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue(impatient)
        with pytest.raises(TaskFailed, match="TimeoutError"):
            await task.result(20)
        state = await client.engine.database.fetchval("select state::text from holdfast.failure")
        assert state == "f"


async def test_a_cancellation_that_was_swallowed_does_not_reach_the_next_attempt(running_worker, client_of):
    app = local_app()

    @app.action
    async def swallow(n: int) -> int:
        if n % 2:
            asyncio.current_task().cancel()
        else:
            await asyncio.sleep(0)
        return n

    async with client_of(app) as client:
        tasks = await client.enqueue_many(swallow, [{"n": n} for n in range(20)])
        async with running_worker(app=app):
            assert [await task.result(20) for task in tasks] == list(range(20))
