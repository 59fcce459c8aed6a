"""Runs from the client's side, with a real worker: waiting, following, explaining, copying; with and without a loop."""

from __future__ import annotations

import threading

import asyncpg
import pytest
from tests.core.flows import a_node, an_edge

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, FlowInput
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.errors import Conflict, Invalid, NotFound, TaskFailed
from holdfast.testing.idle import run_until_idle
from holdfast.testing.run_coroutine import run_coroutine

FLOW = FlowDefinition(
    name="shop.twice",
    nodes=(a_node("first", action="shop.double"), a_node("second", action="shop.double")),
    edges=(
        an_edge(f"{RUN_INPUT}>first", "x>x"),
        an_edge("first>second", ">x"),
        an_edge(f"second>{RUN_OUTPUT}", ">four"),
    ),
    inputs=(FlowInput(name="x"),),
).validated()


@pytest.fixture
def app(holdfast_url):
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url))

    @made.action(max_retries=0)
    async def double(x: int) -> int:
        return 2 * x

    return made


async def test_a_run_is_started_followed_and_read(app, holdfast_url):
    async with app.client() as client:
        run = await client.start(FLOW, x=3)
        assert (await run.why()).state == "queued"
        assert (await run.why("second")).headline == "Blocked: waits for 1 of 1 upstream: first (queued)."
        await run_until_idle(app, holdfast_url)
        assert await run.result(timeout=5) == {"four": 12}
        kinds = [event.kind async for event in run.events()]
        assert (kinds[0], kinds[-1]) == ("execution.started", "execution.completed")
        assert [(task.node, task.state) for task in (await run.show()).tasks] == [
            ("first", "completed"), ("second", "completed"),
        ]  # fmt: skip


async def test_a_copy_runs_with_what_is_changed(app, holdfast_url):
    async with app.client() as client:
        run = await client.start(FLOW, x=3)
        copy = await run.clone(x=5)
        assert (await copy.show()).original_run_id == run.run_id
        with pytest.raises(Invalid):
            await run.clone(y=5)
        with pytest.raises(NotFound):
            await client.run("77").clone()
        await run_until_idle(app, holdfast_url)
        assert (await run.result(), await copy.result()) == ({"four": 12}, {"four": 20})


async def test_a_key_stands_for_one_run_however_it_is_started(app, holdfast_url):
    async with app.client() as client:
        options = RunOptions(key="night")
        [first] = await client.start_many(FLOW, [{"x": 3}], options)
        again = await client.start_by_name("shop.twice", {"x": 3}, options=options)
        assert first.run_id == again.run_id
        with pytest.raises(Conflict):
            await client.start_by_name("shop.twice", {"x": 4}, options=options)
        with pytest.raises(Invalid):
            await client.start_many(FLOW, [{"x": 3}, {"x": 4}], options)
        await run_until_idle(app, holdfast_url)


async def test_a_run_joins_the_callers_transaction_with_and_without_a_key(app, holdfast_url, engine):
    async with app.client() as client:
        options = RunOptions(key="night")
        connection = await asyncpg.connect(engine.database.url)
        given_up = connection.transaction()
        await given_up.start()
        await client.start(FLOW, x=1, connection=connection)
        [lost] = await client.start_many(FLOW, [{"x": 1}], options, connection=connection)
        await given_up.rollback()
        assert await engine.database.fetchval("select count(*) from holdfast.run") == 0
        async with connection.transaction():
            [kept] = await client.start_many(FLOW, [{"x": 2}], options, connection=connection)
            [again] = await client.start_many(FLOW, [{"x": 2}], options, connection=connection)
            assert await engine.database.fetchval("select count(*) from holdfast.run") == 0
        [found] = await client.start_many(FLOW, [{"x": 2}], options)
        assert kept.run_id == again.run_id == found.run_id != lost.run_id
        with pytest.raises(Conflict, match="already stands for"):
            async with connection.transaction():
                await client.start_many(FLOW, [{"x": 3}], options, connection=connection)
        await connection.close()
        await run_until_idle(app, holdfast_url)
        assert await found.result(timeout=5) == {"four": 8}


async def test_a_node_that_did_not_run_has_no_result_and_says_why(app, holdfast_url):
    async with app.client() as client:
        run = await client.start(FLOW, x="not a number")
        await run_until_idle(app, holdfast_url)
        first, second = await run.tasks()
        with pytest.raises(TaskFailed) as caught:
            await client.result(second.task_id, timeout=5)
        assert caught.value.code == "task_upstream_failed"
        assert await client.dead.redrive(first.task_id, reason="again") == 2
        await run_until_idle(app, holdfast_url)
        assert (await run.tasks())[0].attempt == 2


def test_blocking_code_has_the_same_names(app, holdfast_url):
    with app.sync_client() as client:
        run = client.start(FLOW, x=3)
        assert run.why("second").state == "blocked"
        run.pause("look first")
        assert run.show().paused_reason == "look first"
        run.resume()
        working = threading.Thread(target=run_coroutine, args=(run_until_idle(app, holdfast_url),))
        working.start()
        assert run.wait(timeout=20) == "completed"
        working.join()
        assert (run.result(), run.output(), client.run(run.run_id).wait()) == ({"four": 12}, {"four": 12}, "completed")
        events = list(run.events())
        assert [event.cursor for event in run.events(events[2].cursor)] == [event.cursor for event in events[3:]]
        assert next(run.events()).kind == "execution.started"
        assert [task.state for task in run.tasks()] == ["completed", "completed"]
        assert run.retry("once more", only="second") == ["second"]
        run.cancel("enough")
        copies = [run.clone(x=1), client.start_by_name("shop.twice", {"x": 2}), *client.start_many(FLOW, [{"x": 1}])]
        assert len({copy.run_id for copy in copies}) == 3
