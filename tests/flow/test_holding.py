"""A run that is held, and a list that is worked on a few at a time: what they let go, and when."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow, a_map, a_node, a_parent, a_sum, an_edge, an_order_edge
from tests.flow.steps import finish, step
from tests.flow.test_sub_flows import OUTPUTS, children

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind, TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.audit import list_audit
from holdfast.engine.lifecycle.dead_letters.reinject import reinject_once
from holdfast.errors import Conflict
from holdfast.testing.factories import a_failure


async def mapped(harness, count, *, concurrency=2):
    """A run whose list is there and whose items begin."""
    run = await harness.runs.start(a_map(concurrency=concurrency))
    await step(harness, outputs={0: {"all": list(range(count))}})
    return run


async def test_a_paused_run_lets_no_further_items_go_until_it_is_resumed(harness):
    run = await mapped(harness, 5)
    await harness.runs.pause(run)
    assert [len(await step(harness)) for _ in range(2)] == [2, 0]
    await harness.runs.resume(run)
    assert [len(await step(harness)) for _ in range(3)] == [2, 1, 1]
    assert await harness.runs.state(run) == "completed"


async def test_a_resumed_run_lets_no_more_items_go_than_its_node_allows(harness):
    run = await mapped(harness, 5)
    one, other = await harness.claim(10)
    await harness.runs.pause(run)
    await harness.settle(one, Completed(b"1"))
    await harness.runs.resume(run)
    assert len(await harness.claim(10)) == 1
    await harness.settle(other, Completed(b"1"))
    assert len(await harness.claim(10)) == 1
    await harness.runs.cancel(run)


@pytest.mark.parametrize("is_canceled", [True, False])
async def test_a_paused_run_whose_items_are_all_over_ends(harness, is_canceled):
    run = await mapped(harness, 2)
    await harness.runs.pause(run)
    await finish(harness)
    await (harness.runs.cancel(run) if is_canceled else harness.runs.resume(run))
    await finish(harness)
    assert await harness.runs.state(run) == ("canceled" if is_canceled else "completed")


async def test_a_paused_run_whose_items_wait_their_turn_can_be_canceled(harness):
    run = await mapped(harness, 5)
    await harness.runs.pause(run)
    await finish(harness)
    await harness.runs.cancel(run)
    assert await harness.runs.state(run) == "canceled"


async def test_items_that_run_again_run_as_many_at_once_as_before(harness):
    run = await mapped(harness, 6)
    for _ in range(3):
        for lease in await harness.claim(10):
            is_even = lease.claimed.task_id % 2 == 0
            await harness.settle(lease, Completed(b"1") if is_even else Failed(a_failure()))
    await harness.runs.retry(run)
    assert [len(await step(harness)) for _ in range(3)] == [2, 1, 1]
    assert await harness.runs.state(run) == "completed"


async def test_items_that_run_again_wait_for_a_pause_to_end_and_end_with_a_cancel(harness):
    run = await mapped(harness, 6)
    await finish(harness, fail=[1])
    await harness.runs.retry(run)
    await harness.runs.pause(run)
    assert [len(await step(harness, fail=[1])) for _ in range(2)] == [2, 0]
    await harness.runs.resume(run)
    assert len(await step(harness)) == 2
    await harness.runs.cancel(run)
    assert await harness.runs.state(run) == "canceled"


async def test_items_that_an_older_worker_left_standing_are_moved(harness):
    """It counts the end of an item that runs again, and knows nothing of those that wait behind it."""
    run = await mapped(harness, 3, concurrency=1)
    await finish(harness, fail=[1])
    await harness.runs.retry(run)
    [lease] = await harness.claim(10)
    await harness.settle(lease, Completed(b"1"))
    async with harness.engine.database.session() as session:
        await session.execute("delete from holdfast.live; update holdfast.node set items_after = 1 where state = 'm'")
    await harness.runs.repair_once()
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def a_paused_run_that_failed(harness):
    """One of its nodes is held back by the pause, another failed meanwhile."""
    flow = a_flow("c>b", alone=("x",))
    run = await harness.runs.start(flow)
    leases = {lease.task_id: lease for lease in await harness.claim(10)}
    await harness.runs.pause(run)
    x = harness.runs.task_id(run, flow, "x")
    await harness.settle(leases.pop(x), Failed(a_failure()))
    for lease in leases.values():
        await harness.settle(lease, Completed(b"{}"))
    assert await harness.runs.nodes(run) == {"c": "completed", "b": "blocked", "x": "failed"}
    return run, x


@pytest.mark.parametrize("verb", ["run retry", "dead redrive"])
async def test_who_runs_a_paused_run_again_lets_go_what_the_pause_held_back(harness, verb):
    run, x = await a_paused_run_that_failed(harness)
    await (harness.runs.retry(run) if verb == "run retry" else harness.redrive(x))
    assert await harness.runs.nodes(run) == {"c": "completed", "b": "queued", "x": "queued"}
    kinds = [row[0] for row in await harness.engine.database.fetch("select kind from holdfast.event order by seq")]
    assert kinds.index("execution.resumed") < kinds.index("execution.redriven")
    if verb == "run retry":
        [change] = [row for row in await list_audit(harness.engine.database, 1) if row.verb == "run.retry"]
        assert (change.before["paused"], change.after["paused"]) == (True, False)
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_who_runs_a_paused_run_again_lets_the_items_go_that_the_pause_held_back(harness):
    items = a_node("each", kind=NodeKind.MAP, map_over="x", concurrency=2, config={"x": [1, 2, 3, 4]})
    flow = FlowDefinition(name="shop.beside", nodes=(items, a_node("other"))).validated()
    run = await harness.runs.start(flow)
    leases = await harness.claim(10)
    await harness.runs.pause(run)
    for lease in leases:
        await harness.settle(lease, Failed(a_failure()) if lease.claimed.node_no == 1 else Completed(b"1"))
    await harness.runs.retry(run)
    assert [len(await step(harness)) for _ in range(2)] == [3, 0]
    assert await harness.runs.state(run) == "completed"


async def test_a_re_drive_that_nobody_asked_for_leaves_a_paused_run_paused(harness):
    """Neither the sweep nor who empties the dead letters; and what a sub-flow mends waits for the resume."""
    run, x = await a_paused_run_that_failed(harness)
    assert (await reinject_once(harness.engine, "w", 30)).task_id is None
    [letter] = await harness.letters(x)
    await harness.request(letter.fingerprint)
    assert await harness.sweep_once() == 0
    assert await harness.runs.nodes(run) == {"c": "completed", "b": "blocked", "x": "failed"}
    await harness.runs.resume(run)
    assert await harness.sweep_once() == 1
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_a_sub_flow_that_is_mended_leaves_its_paused_parent_paused(harness):
    await harness.runs.snapshot(a_sum(1))
    edges = (*a_parent().edges, an_order_edge("c>b"))
    flow = FlowDefinition(name="shop.two", nodes=(*a_parent().nodes, a_node("c"), a_node("b")), edges=edges).validated()
    run = await harness.runs.start(flow)
    lease = await harness.claim_task(harness.runs.task_id(run, flow, "c"))
    await finish(harness, outputs=OUTPUTS, fail=[1])
    await harness.runs.pause(run)
    await harness.settle(lease, Completed(b"1"))
    [(child, _)] = await children(harness, run)
    await harness.runs.retry(child)
    await finish(harness, outputs=OUTPUTS)
    assert await harness.runs.state(child) == "completed"
    assert set((await harness.runs.nodes(run)).values()) == {"completed", "blocked"}
    await harness.runs.resume(run)
    await finish(harness, outputs=OUTPUTS)
    assert await harness.runs.state(run) == "completed"


async def test_pausing_a_run_pauses_the_runs_it_started_and_resuming_lets_them_go_on(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    child = str(await harness.engine.database.fetchval("select child_run_id from holdfast.node"))
    await harness.runs.pause(run)
    assert [len(await step(harness, outputs={0: {"v": 1}})) for _ in range(2)] == [1, 0]
    with pytest.raises(Conflict, match=f"paused with run {run}"):
        await harness.runs.resume(child)
    await harness.runs.resume(run)
    await finish(harness, outputs={1: {"v": 1}, 2: 1})
    assert await harness.runs.state(run) == "completed"


async def test_a_pause_reaches_what_was_started_below_and_leaves_what_somebody_paused(harness):
    await harness.runs.snapshot(a_flow("a>b"))
    nodes = tuple(a_node(name, action="shop.nightly", kind=NodeKind.FLOW) for name in ("one", "two"))
    await harness.runs.snapshot(FlowDefinition(name="shop.middle", nodes=nodes).validated())
    top = FlowDefinition(name="shop.top", nodes=(a_node("in", action="shop.middle", kind=NodeKind.FLOW),)).validated()
    run = await harness.runs.start(top)
    leaves = await harness.engine.database.fetch(
        "select c.run_id from holdfast.run c join holdfast.run m on m.run_id = c.parent_run_id"
        " where m.parent_run_id = $1 order by 1",
        int(run),
    )
    await harness.runs.pause(str(leaves[0]["run_id"]))
    await harness.runs.pause(run)
    assert [len(await step(harness)) for _ in range(2)] == [2, 0]
    await harness.runs.resume(run)
    assert len(await step(harness)) == 1
    await harness.runs.resume(str(leaves[0]["run_id"]))
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_a_node_behind_a_sub_flow_waits_for_the_resume(harness):
    await harness.runs.snapshot(a_flow("a>b"))
    nodes = (a_node("in", action="shop.nightly", kind=NodeKind.FLOW), a_node("after"))
    flow = FlowDefinition(name="shop.behind", nodes=nodes, edges=(an_order_edge("in>after"),)).validated()
    run = await harness.runs.start(flow)
    await step(harness)
    leases = await harness.claim(10)
    await harness.runs.pause(run)
    for lease in leases:
        await harness.settle(lease, Completed(b"1"))
    assert await harness.runs.nodes(run) == {"in": "completed", "after": "blocked"}
    await harness.runs.resume(run)
    assert len(await step(harness)) == 1


async def test_a_list_that_a_full_run_held_back_still_runs_only_what_failed(harness):
    nodes = (*a_map().nodes, a_node("beside"))
    flow = FlowDefinition(name="shop.full", nodes=nodes, edges=a_map().edges).validated()
    run = await harness.runs.start(flow, max_active=1)
    while (await harness.runs.nodes(run))["double"] == "blocked":
        await step(harness, outputs={0: {"all": [1, 2, 3]}})
    first, *others = await harness.claim(10)
    await harness.settle(first, Failed(a_failure()))
    for lease in others:
        await harness.settle(lease, Completed(b"1"))
    await finish(harness)
    await harness.runs.retry(run, only="beside")
    await harness.runs.retry(run)
    assert (await harness.runs.nodes(run))["double"] == "blocked"
    assert [len(await step(harness)) for _ in range(3)] == [1, 1, 1]
    assert await harness.runs.state(run) == "completed"


async def test_a_node_that_a_full_run_held_back_goes_also_when_another_of_its_upstreams_makes_room(harness):
    run = await harness.runs.start(a_flow("a>b a>c b>c", c=TriggerRule.ONE_SUCCESS), max_active=1)
    await step(harness)
    assert await harness.runs.nodes(run) == {"a": "completed", "b": "queued", "c": "blocked"}
    await finish(harness, fail=[1])
    assert await harness.runs.nodes(run) == {"a": "completed", "b": "failed", "c": "completed"}


async def test_a_node_held_back_behind_one_that_ends_as_it_begins_goes(harness):
    """The list is empty: there is room again in the very transaction that found the run full."""
    nodes = (a_node("list"), a_node("each", kind=NodeKind.MAP, map_over="x"), a_node("other"))
    edges = (an_edge("list>each", "all>x"), an_order_edge("list>other"))
    flow = FlowDefinition(name="shop.empty", nodes=nodes, edges=edges).validated()
    run = await harness.runs.start(flow, max_active=1)
    await finish(harness, outputs={0: {"all": []}})
    assert await harness.runs.state(run) == "completed"
