"""Locks go in the order task, dead letter, run, node, and a parent before its child: who waits holds nothing later."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.core.flows import a_diamond, a_map, a_wait
from tests.flow.steps import finish, step
from tests.flow.test_sub_flows import OUTPUTS, a_failed_parent
from tests.guards.checks.stage import Stage

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.campaigns.plan import plan_campaign
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.requeue import RequeueRequest, redrive_task
from holdfast.engine.lifecycle.dead_letters.sweep import sweep_once
from holdfast.engine.lifecycle.runs.children import answer_once
from holdfast.engine.lifecycle.runs.commands import plan_retry
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.store.statements import sql
from holdfast.testing.factories import a_failure

LOCKS = {
    "task": "select from holdfast.live where run_id = $1 for update nowait",
    "letter": "select from holdfast.dead_letter where run_id = $1 for update nowait",
    "run": "select from holdfast.run where run_id = $1 for no key update nowait",
    "node": "select from holdfast.node where run_id = $1 for update nowait",
}


@pytest.fixture
def stage(engine, harness, clock):
    return Stage(engine, harness, clock)


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


async def test_an_end_holds_its_task_and_no_node_while_it_waits_for_its_run(stage, harness):
    run = await harness.runs.start(a_diamond())
    await step(harness)
    left, right = await harness.claim(10)
    await harness.settle(left, Completed(b"1"))
    assert await held_while_waiting(stage, run, harness.settle(right, Completed(b"1"))) == ["task", "run"]
    await finish(harness)


async def test_the_end_of_an_item_holds_its_task_and_no_node_while_it_waits_for_its_run(stage, harness):
    run = await harness.runs.start(a_map(concurrency=1))
    await step(harness, outputs={0: {"all": [1, 2]}})
    [lease] = await harness.claim(10)
    assert await held_while_waiting(stage, run, harness.settle(lease, Completed(b"1"))) == ["task", "run"]
    await finish(harness)


@pytest.mark.parametrize("name", ["pause", "resume", "retry", "cancel", "signal"])
async def test_a_verb_that_waits_for_a_run_holds_no_task_and_no_node(stage, harness, name):
    run = await harness.runs.start(a_wait() if name == "signal" else a_diamond())
    await step(harness)
    if name == "retry":
        left, right = await harness.claim(10)
        await harness.settle(left, Failed(a_failure()))
        await harness.settle(right, Completed(b"1"))
    if name == "resume":
        await harness.runs.pause(run)
    verb = harness.runs.signal("payment", 1) if name == "signal" else getattr(harness.runs, name)(run)
    # A retry locks the letters of the run before it.
    expected = ["letter", "run"] if name == "retry" else ["run"]
    assert await held_while_waiting(stage, run, verb) == expected
    await finish(harness)
    if name == "pause":
        await harness.runs.cancel(run)


BY = RequeueRequest("ann", "fixed")


async def a_redriven_node(harness):
    """A run whose failed node runs again; answers the run and the lease."""
    run = await harness.runs.start(a_diamond())
    await step(harness)
    left, right = await harness.claim(10)
    await harness.settle(left, Failed(a_failure()))
    await harness.settle(right, Completed(b"1"))
    await harness.runs.retry(run)
    [lease] = await harness.claim(10)
    return run, lease


@pytest.mark.parametrize("outcome", [Completed(b"1"), Failed(a_failure())], ids=lambda one: type(one).__name__)
async def test_the_end_of_a_redriven_node_holds_no_run_while_it_waits_for_its_letters(stage, harness, outcome):
    run, lease = await a_redriven_node(harness)
    verb = harness.settle(lease, outcome)
    assert await held_while_waiting(stage, run, verb, before="letter") == ["task", "letter"]
    await finish(harness)


async def test_of_many_ends_with_a_redriven_one_no_run_is_held_while_they_wait_for_its_letters(stage, harness):
    run, lease = await a_redriven_node(harness)
    other = await harness.runs.start(a_diamond())
    [first] = await harness.claim(10)
    engine = harness.engine

    async def settle_both():
        async with engine.database.transaction() as session:
            reports = [report_of(one.claimed, Completed(b"1")) for one in (lease, first)]
            return await settle(session, engine.catalog, reports)

    async with engine.database.transaction() as session:
        await session.fetch(LOCKS["letter"], int(run))
        late = asyncio.ensure_future(settle_both())
        await stage.waits(late)
        assert not late.done()
        assert await held(stage, other) == ["task"]
    assert not (await late).refused
    await finish(harness)
    assert [await harness.runs.state(one) for one in (run, other)] == ["completed", "completed"]


@pytest.mark.parametrize("name", ["redrive", "retry", "sweep", "ignore"])
async def test_a_verb_that_waits_for_letters_holds_neither_their_run_nor_its_nodes(stage, harness, name):
    run = await harness.runs.start(a_diamond())
    await step(harness)
    left, right = await harness.claim(10)
    await harness.settle(left, Failed(a_failure()))
    await harness.settle(right, Completed(b"1"))
    engine = harness.engine
    [letter] = await harness.letters(left.task_id)
    if name == "sweep":
        await harness.request(letter.fingerprint)

    async def redrive():
        async with engine.database.transaction() as session:
            await redrive_task(session, engine.catalog, 1, int(left.task_id), BY)

    verbs = {
        "redrive": redrive,
        "retry": lambda: harness.runs.retry(run),
        "sweep": lambda: sweep_once(engine.database, engine.catalog),
        "ignore": lambda: dead_letter_commands.ignore(
            engine, 1, task_id=int(left.task_id), actor="ann", reason="known"
        ),
    }
    found = await held_while_waiting(stage, run, verbs[name](), before="letter")
    assert found == ["letter"]
    await finish(harness)


@pytest.mark.representative(one_in=3)
@pytest.mark.parametrize("name", ["retry", "task", "group"])
async def test_a_plan_waits_for_nobody_and_holds_nothing(stage, harness, name):
    run = await harness.runs.start(a_diamond())
    await step(harness)
    left, right = await harness.claim(10)
    await harness.settle(left, Failed(a_failure()))
    await harness.settle(right, Completed(b"1"))
    engine = harness.engine
    [letter] = await harness.letters(left.task_id)
    plans = {
        "retry": lambda: plan_retry(engine.database, engine.catalog, 1, int(run)),
        "task": lambda: dead_letter_commands.repeated_by(engine, 1, int(left.task_id)),
        "group": lambda: plan_campaign(engine, 1, letter.fingerprint),
    }
    async with engine.database.transaction() as holder:
        for lock in ("letter", "run"):
            await holder.fetch(LOCKS[lock], int(run))
        planning = asyncio.ensure_future(plans[name]())
        await stage.waits(planning)
        assert planning.done()
    await planning


@pytest.mark.parametrize("name", ["pause", "resume", "retry"])
async def test_a_verb_that_has_a_run_waits_for_no_task(stage, harness, name):
    run = await harness.runs.start(a_diamond())
    await step(harness)
    left, _ = await harness.claim(10)
    await harness.settle(left, Failed(a_failure()))
    if name == "resume":
        await harness.runs.pause(run)
    async with stage.engine.database.transaction() as first:
        await first.fetch(LOCKS["task"], int(run))
        late = asyncio.ensure_future(getattr(harness.runs, name)(run))
        await stage.waits(late)
        assert late.done()
    await late
    await harness.runs.cancel(run, grace_seconds=60)


async def test_an_answer_holds_no_child_while_it_waits_for_the_parent(stage, harness):
    run, child = await a_failed_parent(harness)
    await harness.runs.retry(run)
    engine = harness.engine
    await step(harness, outputs=OUTPUTS)
    [lease] = await harness.claim(10)
    async with engine.database.transaction() as first:
        await first.fetch(sql("lock_runs"), [int(run)])
        ended = asyncio.ensure_future(harness.settle(lease, Completed(b"42")))
        await stage.waits(ended)
        answer = asyncio.ensure_future(answer_once(engine.database, engine.catalog))
        await stage.waits(answer)
        assert await harness.runs.state(child) == "completed"
        assert await held(stage, child) == []
    await asyncio.gather(ended, answer)
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_a_retry_holds_the_parent_while_it_waits_for_the_child(stage, harness):
    run, child = await a_failed_parent(harness)
    async with stage.engine.database.transaction() as first:
        await first.fetch(LOCKS["run"], int(child))
        late = asyncio.ensure_future(harness.runs.retry(run))
        await stage.waits(late)
        assert not late.done() and "run" in await held(stage, run)
    await late
    await finish(harness, outputs=OUTPUTS)
    assert await harness.runs.state(run) == "completed"
