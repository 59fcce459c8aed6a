"""What executors and the actions inside them do under their lease: effects, steps, rows."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.worker.executors import app_by

import holdfast as hf


async def test_effects_and_steps_of_the_action_are_answered_to_a_second_call(result_of, kind):
    sent, stepped, failing = [], [], [True]

    def send(what: str) -> str:
        sent.append(what)
        return f"sent {what}"

    def look() -> int:
        stepped.append(True)
        return len(stepped)

    async def execute(attempt):
        try:
            return await attempt.call()
        except ConnectionError:
            return await attempt.call()

    app = app_by(execute)
    if kind == "coroutine":

        @app.action(max_retries=0)
        async def act(ctx: hf.Context) -> list:
            done = [await ctx.effect("mail", send, "a"), await ctx.effect("mail", send, "b")]
            done.append(await ctx.step("look", look))
            if failing.pop():
                failing.append(False)
                raise ConnectionError("once")
            return done
    else:

        @app.action(max_retries=0)
        def act(ctx: hf.Context) -> list:
            done = [ctx.effect("mail", send, "a"), ctx.effect("mail", send, "b")]
            done.append(ctx.step("look", look))
            if failing.pop():
                failing.append(False)
                raise ConnectionError("once")
            return done

    assert await result_of(app) == ["sent a", "sent b", 1]
    assert (sent, stepped) == (["a", "b"], [True])


async def test_in_an_executor_the_context_is_awaited_whatever_the_action_is(running_worker, client_of, engine, kind):
    loops = []

    async def session(what: str) -> str:
        loops.append(asyncio.get_running_loop())
        return what

    async def execute(attempt):
        ctx = attempt.context
        ctx.log("begins")
        done = [await ctx.effect("lease.sandbox", session, "box"), await ctx.step("plan", session, "p")]
        done += [await ctx.heartbeat(), await attempt.call(), await ctx.step("plan", session, "p")]
        return done

    app = app_by(execute)
    if kind == "coroutine":

        @app.action
        async def act(ctx: hf.Context) -> str:
            return await ctx.effect("mail", session, "inner")
    else:

        @app.action
        def act(ctx: hf.Context) -> str:
            return ctx.effect("mail", session, "inner")

    async with client_of(app) as client, running_worker(app=app):
        assert await (await client.enqueue("local.act")).result(20) == ["box", "p", True, "inner", "p"]
    here = asyncio.get_running_loop()
    assert [one is here for one in loops] == [True, True, kind == "coroutine"]
    assert await engine.database.fetchval("select detail->>'message' from holdfast.note") == "begins"


async def test_an_included_app_keeps_its_executor_and_a_plain_call_has_none(running_worker, client_of):
    async def execute(attempt):
        return f"executed {await attempt.call()}"

    app, other, bare = hf.App("local"), app_by(execute), hf.App("bare")

    @other.action
    async def act() -> str:
        return "act"

    @bare.action(name="act")
    async def plain() -> str:
        return "plain"

    @app.action
    async def own() -> str:
        return "own"

    app.include(other)
    app.include(bare)
    assert await act() == "act"
    async with client_of(app) as client, running_worker(app=app):
        outputs = [await (await client.enqueue(name)).result(20) for name in ("local.act", "bare.act", "local.own")]
    assert outputs == ["executed act", "plain", "own"]


@pytest.mark.parametrize("way", ["direct"])
async def test_rows_of_executor_and_action_become_true_together(running_worker, client_of, engine, kind, way):
    async def execute(attempt):
        rows = attempt.context.dataset("prices")
        assert await rows.append([{"name": "executor", "price": 1}]) == 1
        for _ in range(2):
            with suppress(ConnectionError):
                done = await attempt.call()
        return done

    app, prices = app_by(execute), [3, 2]
    app.dataset("prices", columns={"name": "text", "price": "bigint"})
    if kind == "coroutine":

        @app.action
        async def act(ctx: hf.Context) -> int:
            rows = await ctx.dataset("prices").append([{"name": "action", "price": prices.pop()}])
            if prices:
                raise ConnectionError("its rows are not taken back")
            return rows
    else:

        @app.action
        def act(ctx: hf.Context) -> int:
            rows = ctx.dataset("prices").append([{"name": "action", "price": prices.pop()}])
            if prices:
                raise ConnectionError("its rows are not taken back")
            return rows

    async with client_of(app) as client, running_worker(app=app, datasets=app.datasets):
        assert await (await client.enqueue("local.act")).result(20) == 1
    found = await engine.database.fetch("select name, price from holdfast_data.prices_v1 order by price")
    assert [tuple(row) for row in found] == [("executor", 1), ("action", 2), ("action", 3)]
