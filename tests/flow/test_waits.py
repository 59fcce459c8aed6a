"""Nodes that wait: for an event, for an approval, or until their time is over."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_node, a_wait, an_order_edge
from tests.flow.steps import finish, step
from tests.waiting import waits

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.runs.signals import _end_wait
from holdfast.engine.lifecycle.tasks.settle import settle


async def test_a_node_waits_for_an_event_and_returns_its_payload(harness):
    run = await harness.runs.start(a_wait())
    assert not await harness.claim(10)
    await harness.runs.signal("payment", {"amount": 5})
    assert await step(harness) == [{"payment": {"amount": 5}}]
    assert await harness.runs.state(run) == "completed"


async def test_an_event_that_came_before_the_wait_is_not_lost_and_not_used_twice(harness):
    nodes = (a_node("first"), *(Node(name=name, action="tick", kind=NodeKind.WAIT) for name in ("one", "two")))
    edges = (an_order_edge("first>one"), an_order_edge("one>two"))
    run = await harness.runs.start(FlowDefinition(name="shop.ticks", nodes=nodes, edges=edges))
    await harness.runs.signal("tick", 1)
    await step(harness)
    assert await harness.runs.nodes(run) == {"first": "completed", "one": "completed", "two": "running"}
    await harness.runs.signal("tick", 2, run_id=run)
    assert await harness.runs.state(run) == "completed"


async def test_an_event_for_another_run_or_of_before_answers_nothing(harness, clock):
    await harness.runs.signal("payment", 1)
    await clock.advance(1)
    other, run = await harness.runs.start(a_wait()), await harness.runs.start(a_wait())
    await harness.runs.signal("payment", 1, run_id=other)
    assert (await harness.runs.nodes(run))["paid"] == "running"
    assert (await harness.runs.nodes(other))["paid"] == "completed"
    await harness.runs.cancel(run)
    assert await harness.runs.state(run) == "canceled"
    await finish(harness)


@pytest.mark.parametrize(("on_timeout", "paid"), [(None, "failed"), ("skip", "skipped")])
async def test_a_wait_ends_at_its_deadline(harness, clock, on_timeout, paid):
    config = {"on_timeout": on_timeout} if on_timeout else {}
    run = await harness.runs.start(a_wait(timeout_seconds=60, config=config))
    await clock.advance(59)
    await harness.runs.repair_once()
    assert (await harness.runs.nodes(run))["paid"] == "running"
    await clock.advance(2)
    await harness.runs.repair_once()
    assert (await harness.runs.nodes(run))["paid"] == paid
    assert await harness.runs.state(run) == ("failed" if paid == "failed" else "completed")


@pytest.mark.parametrize(("approved", "state"), [(True, "open"), (False, "failed")])
async def test_an_approval_is_given_or_refused_by_somebody(harness, approved, state):
    run = await harness.runs.start(a_wait(config={"approval": True}))
    await harness.runs.answer(run, "paid", is_given=approved, reason="no", actor="ada")
    assert await harness.runs.state(run) == state
    if not approved:
        [row] = await harness.engine.database.fetch("select code, message from holdfast.failure")
        assert tuple(row) == ("approval_rejected", "ada rejected paid: no.")
    await finish(harness)


async def test_an_event_from_before_two_sub_flows_answers_one_of_them_also_at_once(harness, engine):
    await harness.runs.snapshot(a_wait())
    inner = (a_node(name, action="shop.wait", kind=NodeKind.FLOW) for name in ("left", "right"))
    nodes = (a_node("first"), *inner)
    edges = (an_order_edge("first>left"), an_order_edge("first>right"))
    run = await harness.runs.start(FlowDefinition(name="shop.both", nodes=nodes, edges=edges).validated())
    await harness.runs.signal("payment", 7, run_id=run)
    [lease] = await harness.claim(10)
    # Without what follows the end: both sub-flows begin, and wait.
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(lease.claimed, Completed(b"1"))])
    waiting = await engine.database.fetch("select run_id, node_no from holdfast.node where state = 'w' order by run_id")
    signal_id = await engine.database.fetchval("select signal_id from holdfast.signal")
    assert len(waiting) == 2

    async def end_wait(row):
        async with engine.database.transaction() as session:
            return await _end_wait(session, engine.catalog, row["run_id"], row["node_no"], signal_id)

    first, second = waiting
    async with engine.database.transaction() as session:
        await _end_wait(session, engine.catalog, first["run_id"], first["node_no"], signal_id)
        late = asyncio.ensure_future(end_wait(second))
        await waits(engine.database, late)
    await late
    left = await engine.database.fetch("select run_id from holdfast.node where state = 'w'")
    assert [row["run_id"] for row in left] == [second["run_id"]]
    await harness.runs.cancel(run)
