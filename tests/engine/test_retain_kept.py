"""What must stay of an old block is copied; everything else of that day goes: partitions, rows and disk space."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from tests.core.flows import a_flow, a_node, an_edge, an_order_edge
from tests.flow.steps import finish, step
from tests.waiting import waits

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.maintenance import retention
from holdfast.engine.maintenance.retention import begin_today, retain_once
from holdfast.engine.queries.counts import LISTED, count_queues
from holdfast.engine.queries.dead_letters import list_letters
from holdfast.engine.queries.explain_run import why
from holdfast.engine.queries.runs import show_run
from holdfast.engine.queries.verify import verify
from holdfast.errors import NotFound
from holdfast.testing import factories as a

SIZE = "select sum(pg_total_relation_size(c.oid)) from pg_class c where c.relname ~ '^(body|attempt|node)_{}$'"


def a_map_that_waits():
    """A list, each member of it doubled; then somebody approves, and the results are gathered."""
    nodes = (
        a_node("list"),
        a_node("double", kind=NodeKind.MAP, map_over="x", config={"by": 2}),
        Node(name="go", action="approval", kind=NodeKind.WAIT, config={"approval": True}),
        a_node("gather"),
    )
    edges = (
        an_edge("list>double", "all>x"),
        an_order_edge("double>go"),
        an_edge("double>gather", ">results"),
        an_order_edge("go>gather"),
    )
    return FlowDefinition(name="shop.approved", nodes=nodes, edges=edges).validated()


async def a_day_passes(harness, clock, *, tasks=0):
    await clock.advance("1d")
    await begin_today(harness.engine.database)
    await retain_once(harness.engine.database, days=7)
    for _ in range(tasks):
        await a.a_completed_task(harness)


async def blocks(harness):
    rows = await harness.engine.database.fetch("select block, is_kept from holdfast.block order by block")
    return {row["block"]: row["is_kept"] for row in rows}


async def block_of(harness, task_id):
    query = "select block from holdfast.block where $1 between first_id and last_id"
    return await harness.engine.database.fetchval(query, int(task_id))


async def broken_promises(engine):
    """All but that of the clock, which a test moves."""
    found = (await verify(engine.database)).violations
    return [one for one in found if one.name != "the_clock_is_the_databases_own"]


async def completed(engine):
    async with engine.database.session() as session:
        counts = await count_queues(session, 1, LISTED, with_history=True)
    return sum(one["completed"] for one in counts.by_queue.values())


@pytest.mark.slow(
    "it moves many rows or waits for real time; "
    "test_what_ends_while_its_block_is_copied_is_kept_and_counted_once is fast"
)
async def test_one_run_and_two_failures_keep_only_what_they_need(harness, clock, engine):
    for _ in range(3):
        await a.a_completed_task(harness)
    run = await harness.runs.start(a_map_that_waits())
    await step(harness, outputs={0: {"all": [1, 2, 3]}})
    await a_day_passes(harness, clock, tasks=2)
    await step(harness, outputs={1: 5})
    assert (await harness.runs.nodes(run))["go"] == "running"
    await a_day_passes(harness, clock, tasks=2)
    dead = await a.a_failed_task(harness, input={"order": 7})
    await a_day_passes(harness, clock, tasks=2)
    broken = await harness.runs.start(a_flow("a>b"))
    node = await harness.claim_one()
    await harness.settle(node, Failed(a.a_failure()))
    needed = {await block_of(harness, one) for one in (run, dead, broken)}
    for _ in range(40):
        await a_day_passes(harness, clock, tasks=1)

    kept = {block for block, is_kept in (await blocks(harness)).items() if is_kept}
    items = await engine.database.fetchval("select items_first from holdfast.node where items_first is not null")
    assert kept == needed | {await block_of(harness, items)}
    assert len(await blocks(harness)) <= len(kept) + 9
    stays = await engine.database.fetchval("select count(*) from holdfast.body where task_id < $1", int(broken))
    assert stays == 1
    assert await broken_promises(engine) == []
    before = await completed(engine)

    # Everything about them can still be asked, and they go on.
    assert (await harness.task(dead)).state == "failed" and (await harness.letters(dead))[0].state == "open"
    for one in (dead, run, broken):
        assert await why(engine.database, engine.catalog, 1, int(one))
    assert (await show_run(engine.database, engine.catalog, 1, int(run))).state == "running"
    await harness.runs.answer(run, "go")
    [gathered] = await step(harness, outputs={3: 15})
    assert gathered == {"results": [5, 5, 5]}
    assert await harness.runs.state(run) == "completed"
    await harness.redrive(dead)
    lease = await harness.claim_one()
    assert lease.claimed.input == b'{"order":7}'
    await harness.settle(lease, Completed(b"1"))
    await harness.redrive(node.task_id)
    await harness.sweep_once()
    await finish(harness)
    assert await harness.runs.state(broken) == "completed"
    assert await completed(engine) == before + 1 + 1 + 2

    # It ended lately: it can be looked at for as long as anything else, and then it goes.
    await a_day_passes(harness, clock)
    assert (await harness.task(dead)).state == "completed"
    assert (await show_run(engine.database, engine.catalog, 1, int(run))).state == "completed"
    for _ in range(9):
        await a_day_passes(harness, clock)
    assert not any((await blocks(harness)).values())
    with pytest.raises(NotFound):
        await harness.task(dead)
    assert await engine.database.fetchval("select count(*) from holdfast.run") == 0


@pytest.mark.slow(
    "it moves many rows or waits for real time; "
    "test_what_ends_while_its_block_is_copied_is_kept_and_counted_once is fast"
)
async def test_the_disk_of_a_large_day_is_free_again(harness, clock, engine):
    dead = await a.a_failed_task(harness)
    block = await block_of(harness, dead)
    for _ in range(3):
        await harness.enqueue_many(a.a_task(), [{"text": secrets.token_hex(4000)} for _ in range(100)])
        for lease in await harness.claim(100):
            await harness.settle(lease, Completed(b"1"))
    full = await engine.database.fetchval(SIZE.format(block))
    for _ in range(9):
        await a_day_passes(harness, clock)
    assert await engine.database.fetchval(SIZE.format(block)) < full / 3
    assert (await harness.task(dead)).state == "failed"


async def test_a_block_of_which_too_much_is_needed_is_left_as_it_is(harness, clock, engine, monkeypatch):
    monkeypatch.setattr(retention, "KEPT_MAX", 3)
    task = await a.a_completed_task(harness)
    await harness.enqueue_many(a.a_task(), [{}] * 4)
    for _ in range(9):
        await a_day_passes(harness, clock)
    assert not (await blocks(harness))[await block_of(harness, task)]
    assert (await harness.task(task)).state == "completed"


async def test_what_ends_while_its_block_is_copied_is_kept_and_counted_once(harness, clock, engine):
    lease = await a.a_running_task(harness)
    await clock.advance("1d")
    await begin_today(engine.database)
    await clock.advance("9d")
    await engine.database.fetch(
        "update holdfast.live set started_at = holdfast.instant(),"
        " lease_expires_at = holdfast.instant() + interval '9 s'"
    )
    async with engine.database.transaction() as reader:
        await reader.fetch("select count(*) from holdfast.attempt")
        folding = asyncio.ensure_future(retention.fold_old(engine.database, days=7))
        await waits(engine.database, folding)
        settling = asyncio.ensure_future(harness.settle(lease, Completed(b"1")))
        await asyncio.sleep(0)
    await asyncio.gather(folding, settling)
    await retain_once(engine.database, days=7)
    assert (await harness.task(lease.task_id)).state == "completed"
    assert await completed(engine) == 1
    assert await broken_promises(engine) == []


async def test_letters_of_what_is_kept_are_listed(harness, clock, engine):
    dead = await a.a_failed_task(harness)
    for _ in range(9):
        await a_day_passes(harness, clock)
    assert [letter.task_id for letter in await list_letters(engine.database, 1)] == [dead]
