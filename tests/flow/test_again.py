"""Nodes that run no task of their own, run again: they fail twice, take no old answer, and keep what was done."""

from __future__ import annotations

import pytest
from tests.core.flows import a_map, a_node, a_parent, a_sum, a_wait, an_edge, an_order_edge
from tests.flow.steps import finish, step

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind, TriggerRule
from holdfast.core.tasks.outcome import Canceled, Completed, Failed
from holdfast.testing.factories import a_failure


async def failures(harness) -> list[tuple[int, str]]:
    """Attempts of nodes without a task that failed, in order."""
    rows = await harness.engine.database.fetch(
        "select attempt, code from holdfast.failure where decision = 'stop' and type = '' order by ended_at, attempt"
    )
    return [(row["attempt"], row["code"]) for row in rows]


async def test_a_wait_that_times_out_twice_fails_twice(harness, clock):
    run = await harness.runs.start(a_wait(timeout_seconds=60))
    for _ in range(2):
        await clock.advance(61)
        await harness.runs.repair_once()
        assert (await harness.runs.nodes(run))["paid"] == "failed"
        await harness.runs.retry(run)
    assert await failures(harness) == [(1, "DAG_TASK_EXECUTION_TIMEOUT"), (2, "DAG_TASK_EXECUTION_TIMEOUT")]
    await harness.runs.signal("payment", 5)
    assert await step(harness) == [{"payment": 5}]
    assert await harness.runs.attempts(run) == {"paid": 2, "ship": 1}


async def test_a_sub_flow_that_fails_twice_fails_its_node_twice(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    for attempt in (1, 2):
        await finish(harness, outputs={0: {"v": 1}}, fail=[1])
        assert await harness.runs.nodes(run) == {"inner": "failed", "after": "upstream_failed"}
        assert (await harness.runs.attempts(run))["inner"] == attempt
        await harness.runs.retry(run)
    await finish(harness, outputs={0: {"v": 1}, 1: {"v": 1}, 2: 1})
    assert await harness.runs.state(run) == "completed"


async def test_an_item_that_was_canceled_runs_again_under_the_next_number(harness):
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": [1, 2]}})
    one, other = await harness.claim(10)
    await harness.cancel(one.task_id)
    await harness.settle(one, Canceled("stop"))
    await harness.settle(other, Failed(a_failure()))
    await harness.runs.retry(run)
    again = await harness.claim(10)
    assert {(lease.task_id, lease.attempt) for lease in again} == {(one.task_id, 2), (other.task_id, 2)}
    for lease in again:
        await harness.settle(lease, Completed(b"1"))
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_a_map_over_no_list_fails_as_often_as_it_is_run(harness):
    run = await harness.runs.start(a_map())
    for attempt in (1, 2, 3):
        await finish(harness, outputs={0: {"all": 7}})
        assert (await harness.runs.attempts(run))["double"] == attempt
        await harness.runs.retry(run, only="list" if attempt == 2 else None)


async def test_a_node_that_cannot_end_stops_no_other(harness, clock):
    """Whatever is wrong with one row, the rest of the installation is told."""
    await harness.runs.snapshot(a_sum(1))
    broken, sound = [await harness.runs.start(a_wait(timeout_seconds=60)) for _ in range(2)]
    parents = [await harness.runs.start(a_parent()) for _ in range(2)]
    database = harness.engine.database
    await database.fetch(f"alter table holdfast.failure add constraint refused check (task_id <> {int(broken) + 1})")
    child = await database.fetchval("select min(run_id) from holdfast.run where parent_run_id = $1", int(parents[0]))
    await database.fetch(f"alter table holdfast.run add constraint stuck check (run_id <> {child} or not is_answered)")
    await clock.advance(61)
    await finish(harness, outputs={0: {"v": 1}, 1: {"v": 1}, 2: 1})
    await harness.runs.repair_once()
    assert [await harness.runs.state(one) for one in (broken, sound)] == ["open", "failed"]
    assert [await harness.runs.state(one) for one in parents] == ["open", "completed"]


def a_parent_with_a_list():
    """The flow that a node runs takes what was listed before."""
    inner = a_node("inner", action="shop.sum", kind=NodeKind.FLOW)
    edges = (an_edge("list>inner", "x>x"), an_edge("inner>after", "sum>total"))
    return FlowDefinition(name="shop.listed", nodes=(a_node("list"), inner, a_node("after")), edges=edges).validated()


def behind_a_failure(*nodes, edges):
    """A list that is made whatever became of the node before it, and what uses it."""
    before = (a_node("first"), a_node("list", trigger_rule=TriggerRule.ALL_DONE))
    edges = (an_order_edge("first>list"), *edges)
    return FlowDefinition(name="shop.behind", nodes=(*before, *nodes), edges=edges).validated()


async def test_items_of_a_list_that_is_made_anew_are_made_anew_though_they_are_as_many(harness):
    each = a_node("each", kind=NodeKind.MAP, map_over="x")
    run = await harness.runs.start(behind_a_failure(each, edges=[an_edge("list>each", "all>x")]))
    await step(harness, fail=[0])
    await step(harness, outputs={1: {"all": ["a", "b"]}})
    one, other = await harness.claim(10)
    await harness.settle(one, Completed(b"1"))
    await harness.settle(other, Failed(a_failure()))
    await harness.runs.retry(run)
    await step(harness)
    await step(harness, outputs={1: {"all": ["c", "d"]}})
    assert await step(harness) == [{"x": "c"}, {"x": "d"}]
    assert await harness.runs.state(run) == "completed"


async def test_a_sub_flow_whose_input_is_made_anew_is_started_anew(harness):
    await harness.runs.snapshot(a_sum(1))
    inner = a_node("inner", action="shop.sum", kind=NodeKind.FLOW)
    run = await harness.runs.start(behind_a_failure(inner, edges=[an_edge("list>inner", "v>x")]))
    await step(harness, fail=[0])
    await step(harness, outputs={1: {"v": "a"}})
    await step(harness, fail=[0])
    await harness.runs.retry(run)
    await step(harness)
    await step(harness, outputs={1: {"v": "c"}})
    assert await step(harness, outputs={0: {"v": 1}}) == [{"x": "c"}]
    await finish(harness, outputs={1: {"v": 1}, 2: 1})
    assert await harness.runs.state(run) == "completed"


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_rejected_twice_fails_twice(harness, approved):
    run = await harness.runs.start(a_wait(config={"approval": True}))
    for attempt in (1, 2):
        await harness.runs.answer(run, "paid", is_given=False)
        assert (await harness.runs.attempts(run))["paid"] == attempt
        await harness.runs.retry(run)
    await harness.runs.answer(run, "paid", is_given=approved)
    await finish(harness)
    assert await harness.runs.state(run) == ("completed" if approved else "failed")


@pytest.mark.parametrize("only", ["paid", "first"])
async def test_an_approval_that_was_given_does_not_answer_when_it_is_asked_for_again(harness, only):
    nodes = (a_node("first"), *a_wait(config={"approval": True}).nodes)
    edges = (an_edge("first>paid", ">first"), an_edge("paid>ship", ">payment"))
    run = await harness.runs.start(FlowDefinition(name="shop.gated", nodes=nodes, edges=edges).validated())
    await step(harness)
    await harness.runs.answer(run, "paid")
    await finish(harness)
    await harness.runs.retry(run, only=only)
    await finish(harness)
    assert (await harness.runs.nodes(run))["paid"] == "running"
    await harness.runs.answer(run, "paid")
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_an_event_that_was_taken_is_not_taken_again_and_one_that_came_late_is(harness, clock):
    run = await harness.runs.start(a_wait(timeout_seconds=60))
    await harness.runs.signal("payment", 1)
    await finish(harness)
    await harness.runs.retry(run, only="paid")
    assert not await step(harness)
    await clock.advance(61)
    await harness.runs.repair_once()
    await harness.runs.signal("payment", 2)
    await harness.runs.retry(run)
    assert await step(harness) == [{"payment": 2}]
