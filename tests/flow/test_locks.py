"""Locks go in the order task, run, node, and a parent before its child: who waits holds nothing that comes later."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.core.flows import a_diamond, a_map, a_wait
from tests.flow.steps import finish, step
from tests.flow.test_sub_flows import OUTPUTS, a_failed_parent
from tests.guards.checks.stage import Stage

from holdfast.core.outcome import Completed, Failed
from holdfast.dispatcher.children import answer_once
from holdfast.store.statements import sql
from holdfast.testing.factories import a_failure

LOCKS = {
    "task": "select from holdfast.live where run_id = $1 for update nowait",
    "run": "select from holdfast.run where run_id = $1 for no key update nowait",
    "node": "select from holdfast.node where run_id = $1 for update nowait",
}


@pytest.fixture
def stage(engine, dispatcher, clock):
    return Stage(engine, dispatcher, clock)


async def held(stage, run) -> list[str]:
    """What of a run somebody holds."""
    found = []
    for name, statement in LOCKS.items():
        try:
            await stage.engine.database.fetch(statement, int(run))
        except asyncpg.LockNotAvailableError:
            found.append(name)
    return found


async def held_while_waiting(stage, run, verb, *, before="run") -> list[str]:
    """What a verb holds of a run while it waits for a lock that somebody has: that lock, and what it took before."""
    async with stage.engine.database.transaction() as first:
        await first.fetch(LOCKS[before], int(run))
        late = asyncio.ensure_future(verb)
        await stage.waits(late)
        assert not late.done()
        found = await held(stage, run)
    await late
    return found


async def test_an_end_holds_its_task_and_no_node_while_it_waits_for_its_run(stage, dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    await step(dispatcher)
    left, right = await dispatcher.claim(10)
    await dispatcher.settle(left, Completed(b"1"))
    assert await held_while_waiting(stage, run, dispatcher.settle(right, Completed(b"1"))) == ["task", "run"]
    await finish(dispatcher)


async def test_the_end_of_an_item_holds_its_task_and_no_node_while_it_waits_for_its_run(stage, dispatcher):
    run = await dispatcher.runs.start(a_map(concurrency=1))
    await step(dispatcher, outputs={0: {"all": [1, 2]}})
    [lease] = await dispatcher.claim(10)
    assert await held_while_waiting(stage, run, dispatcher.settle(lease, Completed(b"1"))) == ["task", "run"]
    await finish(dispatcher)


@pytest.mark.parametrize("name", ["pause", "resume", "retry", "cancel", "signal"])
async def test_a_verb_that_waits_for_a_run_holds_no_task_and_no_node(stage, dispatcher, name):
    run = await dispatcher.runs.start(a_wait() if name == "signal" else a_diamond())
    await step(dispatcher)
    if name == "retry":
        left, right = await dispatcher.claim(10)
        await dispatcher.settle(left, Failed(a_failure()))
        await dispatcher.settle(right, Completed(b"1"))
    if name == "resume":
        await dispatcher.runs.pause(run)
    verb = dispatcher.runs.signal("payment", 1) if name == "signal" else getattr(dispatcher.runs, name)(run)
    assert await held_while_waiting(stage, run, verb) == ["run"]
    await finish(dispatcher)
    if name == "pause":
        await dispatcher.runs.cancel(run)


@pytest.mark.parametrize("name", ["pause", "resume", "retry"])
async def test_a_verb_that_has_a_run_waits_for_no_task(stage, dispatcher, name):
    run = await dispatcher.runs.start(a_diamond())
    await step(dispatcher)
    left, _ = await dispatcher.claim(10)
    await dispatcher.settle(left, Failed(a_failure()))
    if name == "resume":
        await dispatcher.runs.pause(run)
    async with stage.engine.database.transaction() as first:
        await first.fetch(LOCKS["task"], int(run))
        late = asyncio.ensure_future(getattr(dispatcher.runs, name)(run))
        await stage.waits(late)
        assert late.done()
    await late
    await dispatcher.runs.cancel(run, grace_seconds=60)


async def test_an_answer_holds_no_child_while_it_waits_for_the_parent(stage, dispatcher):
    run, child = await a_failed_parent(dispatcher)
    await dispatcher.runs.retry(run)
    engine = dispatcher.engine
    await step(dispatcher, outputs=OUTPUTS)
    [lease] = await dispatcher.claim(10)
    async with engine.database.transaction() as first:
        await first.fetch(sql("lock_runs"), [int(run)])
        ended = asyncio.ensure_future(dispatcher.settle(lease, Completed(b"42")))
        await stage.waits(ended)
        answer = asyncio.ensure_future(answer_once(engine.database, engine.catalog))
        await stage.waits(answer)
        assert await dispatcher.runs.state(child) == "completed"
        assert await held(stage, child) == []
    await asyncio.gather(ended, answer)
    await finish(dispatcher)
    assert await dispatcher.runs.state(run) == "completed"


async def test_a_retry_holds_the_parent_while_it_waits_for_the_child(stage, dispatcher):
    run, child = await a_failed_parent(dispatcher)
    async with stage.engine.database.transaction() as first:
        await first.fetch(LOCKS["run"], int(child))
        late = asyncio.ensure_future(dispatcher.runs.retry(run))
        await stage.waits(late)
        assert not late.done() and "run" in await held(stage, run)
    await late
    await finish(dispatcher, outputs=OUTPUTS)
    assert await dispatcher.runs.state(run) == "completed"
