"""Attempts through an executor: around coroutines and plain functions, over either line."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass

import pytest
from tests.by_sql import by_sql
from tests.worker.executors import app_by

import holdfast as hf
from holdfast.core.tasks.failure import INPUT_CODE, TIMEOUT_CODE
from holdfast.errors import TaskFailed
from holdfast.execution.runner import OUTPUT_CODE

span: ContextVar[str] = ContextVar("span", default="none")


@dataclass
class Order:
    number: int


def an_action(app, kind, **options):
    """Says what it was given, in its own thread or on the loop."""
    if kind == "coroutine":

        @app.action(name="act", **options)
        async def act(order: Order) -> list:
            return [order.number, span.get(), threading.current_thread() is threading.main_thread()]
    else:

        @app.action(name="act", **options)
        def act(order: Order) -> list:
            return [order.number, span.get(), threading.current_thread() is threading.main_thread()]

    return act


async def test_what_an_executor_returns_is_the_output_and_it_sees_the_attempt(result_of, kind):
    seen = []

    async def execute(attempt):
        seen.append((attempt.context.action, attempt.context.attempt, attempt.arguments))
        return {"inner": await attempt.call()}

    app = app_by(execute)
    an_action(app, kind)
    assert await result_of(app, order={"number": 7}) == {"inner": [7, "none", kind == "coroutine"]}
    assert seen == [("local.act", 1, {"order": Order(7)})]


async def test_context_variables_go_in_and_do_not_come_out(running_worker, client_of, kind):
    async def execute(attempt):
        before = span.get()
        span.set(attempt.context.action)
        return [before, (await attempt.call())[1]]

    app = app_by(execute)
    an_action(app, kind)
    async with client_of(app) as client, running_worker(app=app, slots=1):
        tasks = [await client.enqueue("local.act", order={"number": 1}) for _ in range(3)]
        assert [await task.result(20) for task in tasks] == [["none", "local.act"]] * 3


async def test_an_executor_need_not_call_the_function(result_of):
    async def execute(attempt):
        return ["elsewhere", attempt.arguments["order"].number]

    app = app_by(execute)

    @app.action
    async def act(order: Order) -> None:
        raise AssertionError("nobody calls this")

    assert await result_of(app, order={"number": 7}) == ["elsewhere", 7]


async def test_arguments_that_it_changes_are_those_of_the_next_call(result_of, kind):
    async def execute(attempt):
        first = await attempt.call()
        attempt.arguments["order"] = Order(8)
        return [first[0], (await attempt.call())[0]]

    app = app_by(execute)
    an_action(app, kind)
    assert await result_of(app, order={"number": 7}) == [7, 8]


async def test_the_context_stands_where_the_function_wants_it_in_every_call(result_of):
    async def execute(attempt):
        return [await attempt.call(), await attempt.call(), sorted(attempt.arguments)]

    app = app_by(execute)

    @app.action
    def act(number: int, *, ctx: hf.Context) -> list:
        return [number, ctx.task_id == ctx.task_id, ctx.attempt]

    assert await result_of(app, number=3) == [[3, True, 1], [3, True, 1], ["number"]]


async def test_what_it_raises_fails_the_attempt_as_if_the_action_had(result_of, engine, kind):
    async def execute(attempt):
        if attempt.context.attempt == 1:
            raise ConnectionResetError("no way to the sandbox")
        if attempt.context.attempt == 2:
            raise hf.Retry(after=0, message="not yet")
        assert (await attempt.call())[0] == 1
        raise hf.Fatal("never")

    app = app_by(execute)
    an_action(app, kind, max_retries=5, retry={"base_backoff_secs": 0})
    with pytest.raises(TaskFailed, match="never"):
        await result_of(app, order={"number": 1})
    rows = await engine.database.fetch("select type, decision from holdfast.failure order by attempt")
    assert [(row[0], row[1]) for row in rows] == [
        ("ConnectionResetError", "retry"),
        ("holdfast.core.tasks.signals.Retry", "retry"),
        ("holdfast.core.tasks.signals.Fatal", "stop"),
    ]


@pytest.mark.parametrize("where", ["executor", "action", "action in a task"])
async def test_what_would_end_a_worker_ends_only_the_attempt(running_worker, client_of, engine, kind, where):
    errors = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()]

    async def execute(attempt):
        if where == "executor":
            raise errors[attempt.arguments["which"]]
        if where == "action in a task":
            return await asyncio.create_task(attempt.call())
        return await attempt.call()

    app = app_by(execute)
    if kind == "coroutine":

        @app.action(name="act", max_retries=0)
        async def act(which: int) -> str:
            raise errors[which]
    else:

        @app.action(name="act", max_retries=0)
        def act(which: int) -> str:
            raise errors[which]

    async with client_of(app) as client, running_worker(app=app):
        tasks = [await client.enqueue("local.act", which=which) for which in range(len(errors))]
        assert [await task.wait(20) for task in tasks] == ["failed"] * 4
    found = await engine.database.fetch("select type from holdfast.failure order by task_id")
    assert [row[0] for row in found] == ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "RuntimeError"]


async def test_bad_input_is_refused_before_it_and_bad_output_after_it(running_worker, client_of, engine):
    executed = []

    async def execute(attempt):
        executed.append(attempt.arguments)
        return object()

    app = app_by(execute)
    an_action(app, "coroutine", max_retries=0)
    async with client_of(app) as client, running_worker(app=app):
        for given, code in (({"number": "seven"}, INPUT_CODE), ({"number": 7}, OUTPUT_CODE)):
            with pytest.raises(TaskFailed):
                await (await by_sql(client, "local.act", order=given)).result(20)
            assert await engine.database.fetchval("select code from holdfast.failure order by ended_at desc") == code
    assert executed == [{"order": Order(7)}]


async def test_the_time_limit_covers_all_that_an_executor_does(result_of, kind):
    async def execute(attempt):
        await attempt.call()
        await asyncio.sleep(60)

    app = app_by(execute)
    an_action(app, kind, timeout=0.2, max_retries=0)
    with pytest.raises(TaskFailed) as failed:
        await result_of(app, order={"number": 1})
    assert failed.value.fields["cause"] == TIMEOUT_CODE


async def test_a_cancel_reaches_executor_and_action(running_worker, client_of, kind):
    began, heard, loop = asyncio.Event(), [], asyncio.get_running_loop()

    async def execute(attempt):
        try:
            return await attempt.call()
        except asyncio.CancelledError:
            heard.append(("executor", attempt.context.is_canceled))
            raise

    app = app_by(execute)
    if kind == "coroutine":

        @app.action
        async def act(ctx: hf.Context) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                heard.append(("action", ctx.is_canceled))
    else:

        @app.action
        def act(ctx: hf.Context) -> None:
            loop.call_soon_threadsafe(began.set)
            while not ctx.is_canceled:
                time.sleep(0.005)
            heard.append(("action", True))

    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue(act)
        await began.wait()
        assert await task.cancel("enough") == "canceling"
        assert await task.wait(20) == "canceled"
    assert heard == [("action", True), ("executor", True)]


@pytest.mark.representative(one_in=4)
@pytest.mark.parametrize("why", ["its lease is lost", "its worker leaves"])
async def test_an_attempt_that_must_end_tells_its_executor(running_worker, client_of, engine, clock, kind, why):
    began, ended, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    async def execute(attempt):
        try:
            return await attempt.call()
        except asyncio.CancelledError:
            ended.set()
            raise

    app = app_by(execute)
    if kind == "coroutine":

        @app.action(max_losses=0)
        async def act() -> None:
            began.set()
            await asyncio.sleep(60)
    else:

        @app.action(max_losses=0)
        def act(ctx: hf.Context) -> None:
            loop.call_soon_threadsafe(began.set)
            while not ctx.is_canceled:
                time.sleep(0.005)

    async with client_of(app) as client:
        async with running_worker(app=app):
            task = await client.enqueue(act)
            await began.wait()
            if why == "its lease is lost":
                await clock.advance("1m")
                await asyncio.wait_for(ended.wait(), 20)
                await task.wait(20)  # the loops that find it end with the worker here
        if why == "its lease is lost":
            assert await task.wait(20) == "failed"
    assert ended.is_set()
    states = [row["state"] for row in await engine.database.fetch("select state::text from holdfast.failure")]
    # A worker that leaves hands its attempts back: nothing failed.
    assert states == (["l"] if why == "its lease is lost" else [])


async def test_an_executor_that_is_canceled_by_itself_is_a_failure(result_of, kind):
    async def execute(attempt):
        raise asyncio.CancelledError

    app = app_by(execute)
    an_action(app, kind, max_retries=0)
    with pytest.raises(TaskFailed, match="cancelled itself"):
        await result_of(app, order={"number": 1})


async def test_it_may_bound_the_call_by_a_time_of_its_own(result_of, kind):
    async def execute(attempt):
        try:
            async with asyncio.timeout(0.05):
                return await attempt.call()
        except TimeoutError:
            return ["late", attempt.context.is_canceled]

    app = app_by(execute)
    if kind == "coroutine":

        @app.action
        async def act() -> None:
            await asyncio.sleep(60)
    else:

        @app.action
        def act(ctx: hf.Context) -> None:
            while not ctx.is_canceled:
                time.sleep(0.005)

    assert await result_of(app) == ["late", kind == "thread"]


async def test_a_call_that_it_left_running_is_over_before_the_attempt_is(result_of, kind):
    ended, left, began, loop = [], [], asyncio.Event(), asyncio.get_running_loop()

    async def execute(attempt):
        left.append(asyncio.create_task(attempt.call()))
        await began.wait()
        left.append(asyncio.create_task(attempt.call()))  # not even begun
        return list(ended)

    app = app_by(execute)
    if kind == "coroutine":

        @app.action
        async def act() -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)
    else:

        @app.action
        def act(ctx: hf.Context) -> None:
            loop.call_soon_threadsafe(began.set)
            while not ctx.is_canceled:
                time.sleep(0.005)
            ended.append(True)

    assert await result_of(app) == []
    assert ended == [True]
    with pytest.raises(RuntimeError, match="attempt has ended"):
        await left[1]


async def test_a_task_of_the_executors_own_that_makes_the_calls_outlives_an_attempt_that_is_stopped(
    running_worker, client_of
):
    asked, began = asyncio.Queue(), asyncio.Event()

    async def serve():
        """One at a time, for all attempts."""
        while True:
            attempt, answer = await asked.get()
            try:
                answer.set_result(await attempt.call())
            except asyncio.CancelledError:
                began.clear()

    async def execute(attempt):
        answer = asyncio.get_running_loop().create_future()
        await asked.put((attempt, answer))
        return await answer

    app = app_by(execute)

    @app.action
    async def act(hangs: bool) -> str:
        began.set()
        if hangs:
            await asyncio.sleep(60)
        return "done"

    serving = asyncio.create_task(serve())
    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue(act, hangs=True)
        await began.wait()
        await task.cancel("enough")
        assert await task.wait(20) == "canceled"
        assert await (await client.enqueue(act, hangs=False)).result(20) == "done"
    serving.cancel()


async def test_two_calls_may_run_side_by_side(result_of, kind):
    async def execute(attempt):
        return await asyncio.gather(attempt.call(), attempt.call())

    app = app_by(execute)
    an_action(app, kind)
    assert await result_of(app, order={"number": 1}) == [[1, "none", kind == "coroutine"]] * 2
