"""What the worker contract promises, of workers with the database and of workers over HTTP: one suite for both lines.

What `running_worker` and `fleet` do in the other files of this folder is checked both ways too: claims, cancels,
drains, timeouts, blocked loops, killed processes, a database that goes away.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

import holdfast as hf
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.worker.runtime.worker import Worker


def app_with(*functions, **options) -> hf.App:
    app = hf.App("local")
    for function in functions:
        app.action(**options)(function)
    return app


@pytest.mark.representative(one_in=2)
async def test_every_task_is_run_once_and_its_output_kept(running_worker, client_of):
    ran = Counter()

    async def add(a: int, b: int) -> int:
        ran[a] += 1
        return a + b

    app = app_with(add)
    async with client_of(app) as client, running_worker(app=app, slots=30), running_worker(app=app, slots=30):
        tasks = await client.enqueue_many("local.add", [{"a": n, "b": 1} for n in range(120)])
        assert [await task.result(30) for task in tasks] == list(range(1, 121))
    assert set(ran.values()) == {1}


async def test_an_idle_worker_is_woken_and_does_not_wait_for_its_poll(running_worker, client_of, line):
    async def add(a: int) -> int:
        return a

    app, slow = app_with(add), line()
    if hasattr(slow, "poll_seconds"):
        slow.poll_seconds = 3600.0
    async with client_of(app) as client, running_worker(app=app, line=slow):
        for n in range(5):
            assert await (await client.enqueue("local.add", a=n)).result(20) == n


async def test_a_failure_is_retried_by_its_policy_with_everything_it_says(running_worker, client_of, engine):
    attempts = []

    async def flaky(ctx: hf.Context) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise hf.Retry(after=0, message="come again")
        if ctx.attempt == 2:
            raise ConnectionResetError("reset")
        return ctx.attempt

    app = app_with(flaky, max_retries=3, retry={"base_backoff_secs": 0})
    async with client_of(app) as client, running_worker(app=app):
        assert await (await client.enqueue("local.flaky")).result(20) == 3
    rows = await engine.database.fetch("select type, message, traceback from holdfast.failure order by attempt")
    assert attempts == [1, 2, 3]
    assert "come again" in rows[0]["message"] and rows[1]["type"] == "ConnectionResetError"
    assert "flaky" in rows[1]["traceback"]


async def test_a_fatal_failure_is_not_retried(running_worker, client_of):
    async def never() -> None:
        raise hf.Fatal("wrong for ever")

    app = app_with(never, max_retries=5)
    async with client_of(app) as client, running_worker(app=app):
        with pytest.raises(hf.TaskFailed, match="wrong for ever"):
            await (await client.enqueue("local.never")).result(20)


async def test_a_cancel_reaches_the_running_attempt(running_worker, client_of, harness, eventually):
    began, stopped = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    app = app_with(slow)
    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue("local.slow")
        await began.wait()
        await harness.cancel(task.task_id)
        await asyncio.wait_for(stopped.wait(), 20)
        await eventually(lambda: _is(harness, task, TaskState.CANCELED))


async def _is(harness, task, state):
    return (await harness.task(task.task_id)).state is state


async def test_a_timeout_stops_the_attempt_and_is_called_one(running_worker, client_of, engine):
    async def slow() -> None:
        await asyncio.sleep(60)

    app = app_with(slow, timeout=0.2, max_retries=0)
    async with client_of(app) as client, running_worker(app=app):
        with pytest.raises(hf.TaskFailed):
            await (await client.enqueue("local.slow")).result(20)
    assert await engine.database.fetchval("select state from holdfast.failure") == b"t"


@pytest.mark.representative(one_in=2)
async def test_a_lease_outlives_a_long_attempt(running_worker, client_of, engine, harness, eventually):
    began, go = asyncio.Event(), asyncio.Event()

    async def long() -> str:
        began.set()
        await go.wait()
        return "done"

    app = app_with(long)
    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue("local.long")
        await began.wait()
        first = await engine.database.fetchval("select lease_expires_at from holdfast.live")
        await eventually(lambda: engine.database.fetchval("select holdfast.instant() > $1", first))
        go.set()
        assert await task.result(20) == "done"
        assert len(await harness.attempts(task.task_id)) == 1


@pytest.mark.representative(one_in=2)
async def test_a_worker_whose_lease_was_taken_stops_and_reports_nothing(running_worker, client_of, engine, eventually):
    began, stopped = asyncio.Event(), asyncio.Event()

    async def slow(ctx: hf.Context) -> int:
        if ctx.attempt > 1:
            return ctx.attempt
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return 0

    app = app_with(slow, max_losses=2)
    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue("local.slow")
        await began.wait()
        await engine.database.fetch(
            "update holdfast.live set lease_expires_at = holdfast.instant() - interval '1 s' where state = 'r'"
        )
        # The worker itself may be given the next one while the first still runs; it leaves that to its lease.
        assert await task.result(20) >= 2
        assert stopped.is_set(), "the first attempt was told before another could end"


async def test_a_stop_hands_back_what_never_began_and_finishes_the_rest(line, client_of, engine):
    began, go = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        began.set()
        await go.wait()
        return "finished"

    app = app_with(slow)
    async with client_of(app) as client:
        worker = Worker(line(), app.actions, slots=1)
        running = asyncio.create_task(worker.run())
        first, second = await client.enqueue("local.slow"), await client.enqueue("local.slow")
        await began.wait()
        worker.stop()
        go.set()
        await asyncio.wait_for(running, 20)
        assert await first.result(5) == "finished"
        row = await engine.database.fetchrow("select task_id, state, attempt from holdfast.live")
        assert (str(row["task_id"]), row["state"]) == (second.task_id, b"q")
        assert await engine.database.fetchval("select state from holdfast.worker") == "gone"


@pytest.mark.representative(one_in=2)
async def test_planned_stops_hand_an_attempt_back_and_spend_nothing(line, client_of, engine, harness):
    """As many deploys as interrupt a long task: none of them counts as a loss, and what it kept is not forgotten."""
    began, thought = asyncio.Event(), Counter()
    deploys = 5

    async def slow(ctx: hf.Context) -> int:
        def think() -> int:
            thought["once"] += 1
            return 42

        answer = await ctx.step("think", think)
        began.set()
        if ctx.attempt <= deploys:
            await asyncio.sleep(60)
        return answer

    app = app_with(slow, max_losses=1, max_retries=0)
    async with client_of(app) as client:
        task = await client.enqueue("local.slow")
        for attempt in range(1, deploys + 1):
            worker = Worker(line(), app.actions)
            running = asyncio.create_task(worker.run())
            await asyncio.wait_for(began.wait(), 20)
            began.clear()
            worker.stop(within_seconds=0)
            await asyncio.wait_for(running, 20)
            row = await engine.database.fetchrow("select attempt, losses, retries, lease_token from holdfast.live")
            assert tuple(row) == (attempt, 0, 0, None)
        worker = Worker(line(), app.actions)
        running = asyncio.create_task(worker.run())
        assert await task.result(20) == 42
        worker.stop(within_seconds=0)
        await running
    assert thought["once"] == 1
    states = [attempt.state for attempt in await harness.attempts(task.task_id)]
    assert states == [AttemptState.RELEASED] * deploys + [AttemptState.COMPLETED]


async def test_effects_are_sent_once_and_steps_remembered(running_worker, client_of):
    sent, worked = [], []

    def send(to: str, idempotency_key: str) -> dict:
        sent.append(idempotency_key)
        return {"sent": to}

    def think(n: int) -> int:
        worked.append(n)
        return n * n

    async def mail(ctx: hf.Context) -> dict:
        square = await ctx.step("think", think, 7)
        receipt = await ctx.effect("smtp.send", send, "anna", key="welcome:1")
        await ctx.heartbeat()
        if ctx.attempt == 1:
            raise ConnectionResetError("after the mail")
        return {"square": square, "receipt": receipt}

    def mail_in_thread(ctx: hf.Context) -> dict:
        return ctx.effect("smtp.send", send, "anna", key="welcome:1")

    app = app_with(mail, mail_in_thread, max_retries=2, retry={"base_backoff_secs": 0})
    async with client_of(app) as client, running_worker(app=app):
        assert await (await client.enqueue("local.mail")).result(20) == {"square": 49, "receipt": {"sent": "anna"}}
        assert await (await client.enqueue("local.mail_in_thread")).result(20) == {"sent": "anna"}
    assert (len(sent), worked) == (1, [7])


async def test_a_reused_key_with_other_arguments_is_refused(running_worker, client_of):
    async def mail(ctx: hf.Context, to: str) -> None:
        await ctx.effect("smtp.send", lambda to: {"sent": to}, to, key="welcome")

    app = app_with(mail, max_retries=0)
    async with client_of(app) as client, running_worker(app=app):
        await (await client.enqueue("local.mail", to="anna")).result(20)
        with pytest.raises(hf.TaskFailed, match="other arguments"):
            await (await client.enqueue("local.mail", to="bob")).result(20)


async def test_attempts_in_threads_and_their_words(running_worker, client_of, engine):
    def plain(ctx: hf.Context) -> str:
        ctx.log("in a thread", name=threading.current_thread().name)
        ctx.progress(1, 2, "half")
        return "ok"

    app = app_with(plain)
    async with client_of(app) as client, running_worker(app=app):
        assert await (await client.enqueue("local.plain")).result(20) == "ok"
    rows = await engine.database.fetch("select kind from holdfast.note order by seq")
    assert [row["kind"] for row in rows] == ["log", "progress"]


async def test_an_output_too_large_fails_its_attempt_alone(running_worker, client_of, engine):
    async def large(size: int) -> str:
        return "x" * size

    app = app_with(large, max_retries=0)
    async with client_of(app) as client, running_worker(app=app):
        wrong = await client.enqueue("local.large", size=engine.settings.limits.output_bytes_max + 1)
        right = await client.enqueue("local.large", size=10)
        assert await right.result(20) == "x" * 10
        with pytest.raises(hf.TaskFailed, match="payload_too_large"):
            await wrong.result(20)


async def test_what_actions_declare_is_known_to_callers_without_the_code(running_worker, client_of, engine):
    async def odd() -> None:
        return None

    app = hf.App("local")
    app.action(queue="mail", priority=1, max_retries=17, timeout="30s", breaker=True)(odd)
    async with running_worker(app=app):
        known = await engine.catalog.declared(1, "local.odd")
        assert (known.queue, known.priority) == ("mail", 1)
        assert (known.policy.max_retries, known.policy.timeout_seconds) == (17, 30.0)
        assert await engine.database.fetchval("select count(*) from holdfast.breaker") == 1
