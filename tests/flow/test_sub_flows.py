"""Sub-flows: a node that is a run of another flow.

One that runs again goes on with the run it has, and a run mended by itself mends its node.
"""

from __future__ import annotations

import pytest
from tests.core.flows import a_node, a_parent, a_sum, an_edge
from tests.engine.test_redrive_races import meeting
from tests.flow.steps import finish, step

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.lifecycle.runs.redrive import plan_redrive, redrive_run
from holdfast.engine.lifecycle.tasks.delete import delete_task
from holdfast.engine.queries.dead_letters import dead_groups, list_letters
from holdfast.errors import Conflict

OUTPUTS = {0: {"v": 1}, 1: {"v": 1}, 2: 42}


async def children(harness, run) -> list[tuple[str, str]]:
    """The runs that a run started, first to last, with their states."""
    rows = await harness.engine.database.fetch(
        "select run_id::text as id, state::text as state from holdfast.run where parent_run_id = $1 order by run_id",
        int(run),
    )
    return [(row["id"], row["state"]) for row in rows]


async def a_failed_parent(harness) -> tuple[str, str]:
    """A run whose sub-flow failed at its second of three nodes; the ids of both."""
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    await finish(harness, outputs=OUTPUTS, fail=[1])
    [(child, state)] = await children(harness, run)
    assert (state, await harness.runs.state(run)) == ("f", "failed")
    return run, child


async def test_a_node_can_be_a_run_of_another_flow(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    assert await step(harness, outputs={0: {"v": 1}}) == [{"x": 3}]
    await step(harness, outputs={1: {"v": 1}})
    await step(harness, outputs={2: 42})
    assert await step(harness) == [{"total": 42}]
    assert await harness.runs.state(run) == "completed"


async def test_a_run_that_fails_fails_the_node_that_waits_for_it(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    await finish(harness, outputs={0: {"v": 1}}, fail=[1])
    assert await harness.runs.nodes(run) == {"inner": "failed", "after": "upstream_failed"}
    await harness.runs.retry(run)
    await finish(harness, outputs={0: {"v": 1}, 1: {"v": 1}, 2: 1})
    assert await harness.runs.state(run) == "completed"


async def test_canceling_a_run_cancels_the_runs_it_started(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    await harness.runs.cancel(run)
    assert await harness.runs.state(run) == "open"
    await harness.runs.repair_once()
    assert await harness.runs.state(run) == "canceled"
    assert not await harness.claim(10)


async def test_input_that_a_flow_does_not_take_fails_the_node(harness):
    await harness.runs.snapshot(a_sum(1))
    flow = FlowDefinition(
        name="shop.odd", nodes=(a_node("inner", action="shop.sum", kind=NodeKind.FLOW, config={"y": 1}),)
    )
    run = await harness.runs.start(flow)
    assert await harness.runs.state(run) == "failed"


async def test_a_sub_flow_cannot_be_deleted_while_its_parent_is_being_run_again(harness):
    """The deletion looked before the retry was committed, and waited for it."""
    run, child = await a_failed_parent(harness)
    [letter] = await letters(harness)
    engine = harness.engine

    async def retry(session):
        await redrive_run(session, engine.catalog, 1, int(run), actor="ann", reason="fixed")

    async def delete():
        return await delete_task(engine, 1, int(letter.task_id), actor="bob", reason="gone")

    async with meeting(harness, retry, delete) as met:
        refused = await met.answer()
    assert met.has_waited and isinstance(refused, Conflict) and refused.code == "run_not_over"
    await harness.runs.repair_once()
    await finish(harness, outputs=OUTPUTS)
    assert (await children(harness, run), await harness.runs.state(run)) == ([(child, "c")], "completed")


async def letters(harness, **options):
    return await list_letters(harness.engine.database, harness.engine.tenant_id, **options)


async def test_a_retry_runs_only_what_failed_in_the_run_of_a_node(harness):
    run, child = await a_failed_parent(harness)
    await harness.runs.retry(run)
    assert [await step(harness, outputs=OUTPUTS) for _ in range(3)] == [
        [{"i": 0, "v": 1}],
        [{"values": [1]}],
        [{"total": 42}],
    ]
    assert await children(harness, run) == [(child, "c")]
    assert await harness.runs.state(run) == "completed"
    assert await harness.runs.attempts(child) == {"number": 1, "part0": 2, "sum": 1}
    assert [one.state for one in await letters(harness)] == ["resolved"]


async def test_a_child_that_is_mended_by_itself_mends_the_node_that_failed_with_it(harness):
    run, child = await a_failed_parent(harness)
    [letter] = await letters(harness)
    await harness.redrive(letter.task_id)
    assert await harness.runs.state(run) == "failed"
    await finish(harness, outputs=OUTPUTS)
    assert await harness.runs.nodes(run) == {"inner": "completed", "after": "completed"}
    assert (await children(harness, run), await harness.runs.state(run)) == ([(child, "c")], "completed")


async def test_a_child_that_fails_again_leaves_its_parent_as_it_is(harness):
    run, child = await a_failed_parent(harness)
    await harness.runs.retry(child)
    await finish(harness, outputs=OUTPUTS, fail=[1])
    assert await harness.runs.state(run) == "failed"
    await harness.runs.retry(child)
    await finish(harness, outputs=OUTPUTS)
    assert await harness.runs.state(run) == "completed"


async def test_a_child_that_was_mended_while_its_parent_was_canceled_changes_nothing(harness):
    nodes = (*a_parent().nodes, a_node("beside"))
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(FlowDefinition(name="shop.two", nodes=nodes, edges=a_parent().edges).validated())
    lease = await harness.claim_task(str(int(run) + 3))
    await finish(harness, outputs=OUTPUTS, fail=[1])
    await harness.runs.cancel(run, grace_seconds=60)
    [(child, _)] = await children(harness, run)
    await harness.runs.retry(child)
    await finish(harness, outputs=OUTPUTS)
    await harness.settle(lease, Completed(b"1"))
    assert (await harness.runs.nodes(run))["inner"] == "failed"
    assert await harness.runs.state(run) == "canceled"


async def test_a_retry_of_a_parent_waits_for_a_child_that_runs_again_already(harness):
    run, child = await a_failed_parent(harness)
    await harness.runs.retry(child)
    await harness.runs.retry(run)
    await finish(harness, outputs=OUTPUTS)
    assert (await children(harness, run), await harness.runs.state(run)) == ([(child, "c")], "completed")
    assert await harness.runs.attempts(child) == {"number": 1, "part0": 2, "sum": 1}


async def test_a_retry_that_nobody_followed_up_is_found_by_a_pass(harness):
    run, child = await a_failed_parent(harness)
    engine = harness.engine
    async with engine.database.transaction() as session:
        await redrive_run(session, engine.catalog, engine.tenant_id, int(run), actor="x", reason="")
    assert not await harness.claim(10)
    await harness.runs.repair_once()
    await finish(harness, outputs=OUTPUTS)
    assert (await children(harness, run), await harness.runs.state(run)) == ([(child, "c")], "completed")


async def test_a_run_canceled_before_its_child_runs_again_ends(harness):
    run, child = await a_failed_parent(harness)
    engine = harness.engine
    async with engine.database.transaction() as session:
        await redrive_run(session, engine.catalog, engine.tenant_id, int(run), actor="x", reason="")
    await harness.runs.cancel(run)
    await harness.runs.repair_once()
    assert await harness.runs.state(run) == "canceled"
    assert await children(harness, run) == [(child, "f")]


def three_levels():
    middle = a_node("middle", action="shop.parent", kind=NodeKind.FLOW)
    return FlowDefinition(
        name="shop.top", nodes=(middle, a_node("last")), edges=(an_edge("middle>last", ">m"),)
    ).validated()


@pytest.mark.parametrize("from_below", [True, False])
async def test_what_failed_two_levels_below_is_mended_from_above_and_from_below(harness, from_below):
    await harness.runs.snapshot(a_sum(1))
    await harness.runs.snapshot(a_parent())
    run = await harness.runs.start(three_levels())
    await finish(harness, outputs=OUTPUTS, fail=[1])
    [(middle, _)] = await children(harness, run)
    [(leaf, _)] = await children(harness, middle)
    await harness.runs.retry(leaf if from_below else run)
    await finish(harness, outputs=OUTPUTS)
    assert [await harness.runs.state(one) for one in (run, middle, leaf)] == ["completed"] * 3
    assert await harness.runs.attempts(leaf) == {"number": 1, "part0": 2, "sum": 1}


async def test_a_node_held_back_goes_on_with_its_run_when_there_is_room(harness):
    await harness.runs.snapshot(a_sum(1))
    nodes = (*a_parent().nodes, a_node("beside"))
    flow = FlowDefinition(name="shop.two", nodes=nodes, edges=a_parent().edges).validated()
    run = await harness.runs.start(flow, max_active=1)
    await finish(harness, outputs={**OUTPUTS}, fail=[1])
    assert await harness.runs.nodes(run) == {"inner": "failed", "after": "upstream_failed", "beside": "completed"}
    [(child, _)] = await children(harness, run)
    await harness.runs.retry(run, only="beside")
    await harness.runs.retry(run)
    assert (await harness.runs.nodes(run))["inner"] == "blocked"
    await finish(harness, outputs=OUTPUTS)
    assert (await children(harness, run), await harness.runs.state(run)) == ([(child, "c")], "completed")


def a_listed_parent():
    """The sub-flow gets its input from a node before it."""
    inner = a_node("inner", action="shop.sum", kind=NodeKind.FLOW)
    edges = (an_edge("list>inner", "v>x"), an_edge("inner>after", "sum>total"))
    return FlowDefinition(name="shop.listed", nodes=(a_node("list"), inner, a_node("after")), edges=edges).validated()


async def test_a_run_whose_input_is_made_anew_is_replaced_and_its_letters_are_closed(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_listed_parent())
    await step(harness, outputs=OUTPUTS)
    await finish(harness, outputs=OUTPUTS, fail=[1])
    [(old, _)] = await children(harness, run)
    await harness.runs.retry(run, only="list")
    [letter] = await letters(harness)
    assert (letter.state, letter.disposition) == ("resolved", "superseded")
    await finish(harness, outputs=OUTPUTS)
    assert [state for _, state in await children(harness, run)] == ["f", "c"]
    assert not await dead_groups(harness.engine.database, harness.engine.tenant_id)
    with pytest.raises(Conflict, match="started another in its place"):
        await harness.runs.retry(old)
    with pytest.raises(Conflict, match="started another in its place"):
        await harness.redrive(letter.task_id)


async def test_a_replaced_run_that_runs_again_is_canceled(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_listed_parent())
    await step(harness, outputs=OUTPUTS)
    await finish(harness, outputs=OUTPUTS, fail=[1])
    [(old, _)] = await children(harness, run)
    await harness.runs.retry(old)
    await harness.runs.retry(run, only="list")
    await harness.runs.repair_once()
    assert await children(harness, run) == [(old, "x")]
    await finish(harness, outputs=OUTPUTS)
    assert await harness.runs.state(run) == "completed"


async def test_a_dry_run_names_the_tasks_of_a_run_that_would_run_again(harness):
    run, child = await a_failed_parent(harness)
    engine = harness.engine
    async with engine.database.transaction() as session:
        plan = await plan_redrive(session, engine.catalog, engine.tenant_id, int(run))
    assert {int(child) + 2, int(child) + 3} <= set(plan.task_ids)
    assert int(child) + 1 not in plan.task_ids
