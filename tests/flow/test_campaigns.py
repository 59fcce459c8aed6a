"""A campaign over failed nodes re-drives their runs, each once."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_diamond, a_flow, a_node, an_edge, an_order_edge
from tests.waiting import waits

from holdfast.core.dead_letters.campaign import PRIORITY
from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind, TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.campaigns.commands import show_campaign, start_campaign
from holdfast.engine.campaigns.plan import plan_campaign
from holdfast.engine.queries.dead_letters import dead_groups
from holdfast.testing import factories as a


async def settle_all(harness, outcome_of):
    leases = await harness.claim(100)
    for lease in leases:
        await harness.settle(lease, outcome_of(lease))
    return len(leases)


def completed(_lease):
    return Completed(b"{}")


def failed(_lease):
    return Failed(a.a_failure())


async def failed_maps(harness, *sizes):
    """Runs of one map each, all of whose items failed with the same fault; answers the fault."""
    for size in sizes:
        node = a_node("each", kind=NodeKind.MAP, map_over="x", config={"x": list(range(size))})
        await harness.runs.start(FlowDefinition(name=f"shop.map_{size}", nodes=(node,)).validated())
    while await settle_all(harness, failed):
        pass
    [group] = await dead_groups(harness.engine.database, 1)
    assert group.count == sum(sizes)
    return group.fingerprint


async def begin(harness, fingerprint, **options):
    view = await start_campaign(harness.engine, 1, fingerprint, actor="ann", reason="fixed", **options)
    return int(view.campaign_id)


async def counts(harness, campaign_id):
    view = await show_campaign(harness.engine, 1, campaign_id)
    return view.state, view.released, view.outstanding, view.succeeded


async def attempts(harness):
    """How often anything of the database ran."""
    rows = "select count(*) from (select from holdfast.attempt union all select from holdfast.failure) a"
    return await harness.engine.database.fetchval(rows)


async def half_failed_runs(harness, count):
    """Open runs with one failed node and one that runs; the youngest failed first. Answers them and the fault."""
    flow = a_flow(alone=("x", "y"))
    runs = [await harness.runs.start(flow) for _ in range(count)]
    leases = {lease.task_id: lease for lease in await harness.claim(2 * count)}
    for run in reversed(runs):
        await harness.settle(leases[harness.runs.task_id(run, flow, "x")], Failed(a.a_failure()))
    [group] = await dead_groups(harness.engine.database, 1)
    return runs, group.fingerprint


async def test_a_paused_run_is_waited_for(harness):
    (run, other), fingerprint = await half_failed_runs(harness, 2)
    campaign_id = await begin(harness, fingerprint)
    await harness.runs.pause(run)
    assert [await harness.campaigns_once() for _ in range(2)] == [1, 0]
    assert "paused" in (await show_campaign(harness.engine, 1, campaign_id)).note
    assert [(await harness.runs.nodes(one))["x"] for one in (run, other)] == ["failed", "queued"]
    await harness.runs.resume(run)
    assert await harness.campaigns_once() == 1


async def test_letters_of_canceled_runs_are_neither_counted_nor_released(harness):
    """Seven runs failed alike and five were canceled: these are no canary, and stop nothing."""
    runs, fingerprint = await half_failed_runs(harness, 7)
    for run in runs[2:]:
        await harness.runs.cancel(run)
    plan = await plan_campaign(harness.engine, 1, fingerprint)
    assert (plan.tasks, plan.runs) == (2, 2)
    campaign_id = await begin(harness, fingerprint)
    assert (await show_campaign(harness.engine, 1, campaign_id)).total == 2
    assert await harness.campaigns_once() == 2
    await settle_all(harness, completed)
    await harness.campaigns_once()
    assert await counts(harness, campaign_id) == ("completed", 2, 0, 2)


async def test_runs_are_locked_in_one_order_whichever_failed_first(harness):
    """A worker that ends nodes of both has the first, and wants the second."""
    runs, fingerprint = await half_failed_runs(harness, 2)
    await begin(harness, fingerprint)
    hold, database = "select from holdfast.run where run_id = $1 for no key update", harness.engine.database
    async with database.transaction() as session:
        await session.fetch(hold, int(runs[0]))
        late = asyncio.ensure_future(harness.campaigns_once())
        assert await waits(database, late)
        await session.fetch(hold, int(runs[1]))
    assert await late == 2


async def test_a_run_larger_than_the_canary_goes_alone_and_is_counted_whole(harness):
    campaign_id = await begin(harness, await failed_maps(harness, 6, 30, 3), canary=2)
    assert [await harness.campaigns_once() for _ in range(3)] == [6, 0, 0]
    assert await counts(harness, campaign_id) == ("canary", 6, 6, 0)
    before = await attempts(harness)
    assert await settle_all(harness, completed) == 6
    # Six may be out at once now: the run of thirty goes alone.
    assert await harness.campaigns_once() == 30
    assert await counts(harness, campaign_id) == ("ramp", 36, 30, 6)
    assert await settle_all(harness, completed) == 30
    assert await harness.campaigns_once() == 3
    assert await settle_all(harness, completed) == 3
    await harness.campaigns_once()
    assert await counts(harness, campaign_id) == ("completed", 39, 0, 39)
    assert await attempts(harness) - before == 39


async def test_runs_that_fit_go_together_and_one_that_does_not_waits_for_room(harness):
    campaign_id = await begin(harness, await failed_maps(harness, 2, 3, 4), canary=6)
    assert [await harness.campaigns_once() for _ in range(2)] == [5, 0]
    assert await settle_all(harness, completed) == 5
    assert await harness.campaigns_once() == 4
    assert await counts(harness, campaign_id) == ("canary", 9, 4, 5)


async def test_the_same_fault_in_a_run_stops_the_campaign_with_the_others_unreleased(harness):
    campaign_id = await begin(harness, await failed_maps(harness, 4, 5), canary=1)
    await harness.campaigns_once()
    assert await settle_all(harness, failed) == 4
    assert await harness.campaigns_once() == 0
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.state, view.released, view.returned, view.outstanding) == ("stopped", 4, 4, 0)
    assert not await harness.claim(100)


async def test_a_campaign_takes_along_what_its_runs_run_again_of_other_faults(harness):
    """Both nodes of the diamond go again with their run: both are counted, and neither letter stays open."""
    run = await harness.runs.start(a_diamond())
    await settle_all(harness, completed)
    faults = iter(["validation: left", "validation: right"])
    await settle_all(harness, lambda _lease: Failed(a.a_failure(next(faults))))
    left, _ = await dead_groups(harness.engine.database, 1)
    campaign_id = await begin(harness, left.fingerprint, canary=1)
    assert await harness.campaigns_once() == 2
    states = await harness.engine.database.fetch("select state, campaign_id from holdfast.dead_letter")
    assert [tuple(row) for row in states] == [("retrying", campaign_id)] * 2
    while await settle_all(harness, completed):
        pass
    await harness.campaigns_once()
    assert await harness.runs.state(run) == "completed"
    assert await counts(harness, campaign_id) == ("completed", 2, 0, 2)


async def test_nodes_of_a_campaign_come_after_other_work_of_their_queue(harness):
    await begin(harness, await failed_maps(harness, 3), canary=1)
    await harness.campaigns_once()
    rows = await harness.engine.database.fetch("select priority from holdfast.live")
    assert [row["priority"] for row in rows] == [PRIORITY] * 3


async def test_a_plan_says_in_how_many_runs_its_tasks_are(harness):
    plan = await plan_campaign(harness.engine, 1, await failed_maps(harness, 4, 5))
    assert (plan.tasks, plan.runs) == (9, 2)


async def test_a_plan_names_effects_of_completed_nodes_that_run_again(harness):
    """`b` runs after `a`, however that ended: it completed, and goes again with it."""
    flow = a_flow("a>b", b=TriggerRule.ALL_DONE)
    run = await harness.runs.start(flow)
    await settle_all(harness, failed)
    await settle_all(harness, completed)
    await harness.engine.database.fetch(
        "insert into holdfast.effect (key, task_id, tenant_id, attempt, ordinal, generation, state, lease_token, name,"
        " digest) select 'k', task_id, 1, 1, 0, 1, 'u', lease_token, 'smtp.send', '' from holdfast.attempt"
        " where task_id = $1",
        int(harness.runs.task_id(run, flow, "b")),
    )
    [group] = await dead_groups(harness.engine.database, 1)
    plan = await plan_campaign(harness.engine, 1, group.fingerprint)
    assert [(one.name, one.receipts, one.unknown) for one in plan.effects] == [("smtp.send", 0, 1)]
    assert (plan.runs, plan.looked_into) == (1, 1)


async def test_runs_of_a_group_are_re_driven_and_complete(harness):
    flow = a_diamond()
    runs = await harness.runs.start_many(flow, [{}] * 3)
    await settle_all(harness, completed)
    await settle_all(harness, lambda _lease: Failed(a.a_failure()))
    [group] = await dead_groups(harness.engine.database, 1)
    assert group.count == 6
    view = await start_campaign(harness.engine, 1, group.fingerprint, actor="ann", reason="fixed", canary=1)
    released = []
    for _ in range(12):
        released.append(await harness.campaigns_once())
        await settle_all(harness, completed)
    assert [await harness.runs.state(run) for run in runs] == ["completed"] * 3
    done = await show_campaign(harness.engine, 1, int(view.campaign_id))
    assert (done.state, done.returned, done.failed, done.outstanding) == ("completed", 0, 0, 0)
    assert [count for count in released if count] == [2, 2, 2] and done.released == done.succeeded == 6
    assert not await dead_groups(harness.engine.database, 1)


def after_a_repaired_root(name, *nodes, edges):
    """`r`, then `list` however that ended, then others; answers the flow."""
    first = (a_node("r"), a_node("list", trigger_rule=TriggerRule.ALL_DONE))
    return FlowDefinition(name=name, nodes=(*first, *nodes), edges=(an_order_edge("r>list"), *edges)).validated()


async def run_again(harness, run, *outcomes):
    """A campaign over the one fault there is, what its run does this time, and what became of each letter."""
    [group] = await dead_groups(harness.engine.database, 1)
    campaign_id = await begin(harness, group.fingerprint)
    assert await harness.campaigns_once() == group.count
    for outcome in outcomes:
        await harness.settle(await harness.claim_one(), outcome)
    assert await harness.runs.state(run) == "completed"
    await harness.campaigns_once()
    rows = await harness.engine.database.fetch(
        "select d.state, d.disposition, m.outcome from holdfast.dead_letter d"
        " join holdfast.campaign_letter m using (dead_letter_id) order by dead_letter_id"
    )
    return await counts(harness, campaign_id), [tuple(row) for row in rows]


async def told(harness, kind):
    """How many letters events of a kind tell of."""
    count = "select coalesce(sum(cardinality(task_ids)), 0) from holdfast.event where kind = $1"
    return await harness.engine.database.fetchval(count, kind)


async def test_a_campaign_is_over_when_its_run_took_another_way(harness):
    """The node that failed is skipped this time: its letter says nothing about the fault, and nothing waits for it."""
    condition = Condition(upstream="list", output_key="n", operator=Operator.GREATER, value=3)
    flow = after_a_repaired_root("shop.way", a_node("big", condition=condition), edges=(an_order_edge("list>big"),))
    run = await harness.runs.start(flow)
    for outcome in (failed(None), Completed(b'{"n":4}'), failed(None)):
        await harness.settle(await harness.claim_one(), outcome)
    done, letters = await run_again(harness, run, completed(None), Completed(b'{"n":1}'))
    assert done == ("completed", 2, 0, 1)
    assert letters == [("resolved", "retry_succeeded", "succeeded"), ("resolved", "superseded", "dropped")]
    assert await told(harness, "dead_letter.resolved") == 2


async def test_a_campaign_is_over_when_other_items_took_the_place_of_those_that_failed(harness):
    each = a_node("each", kind=NodeKind.MAP, map_over="x")
    flow = after_a_repaired_root("shop.items", each, edges=(an_edge("list>each", "all>x"),))
    run = await harness.runs.start(flow)
    for outcome in (failed(None), Completed(b'{"all":[1,2]}'), failed(None), failed(None)):
        await harness.settle(await harness.claim_one(), outcome)
    again = (completed(None), Completed(b'{"all":[3]}'), completed(None))
    done, letters = await run_again(harness, run, *again)
    assert done == ("completed", 3, 0, 3)
    assert letters == [("resolved", "retry_succeeded", "succeeded")] * 3


@pytest.mark.parametrize(
    ("ends", "reason"), [("fail", "its task failed again in a campaign"), ("cancel", "its task or run was canceled")]
)
async def test_letters_that_a_campaign_parks_are_told(harness, ends, reason):
    (run,), fingerprint = await half_failed_runs(harness, 1)
    await begin(harness, fingerprint)
    await harness.campaigns_once()
    if ends == "cancel":
        await harness.runs.cancel(run)
        await harness.runs.repair_once()
    else:
        await settle_all(harness, failed)
    await harness.campaigns_once()
    detail = "select detail ->> 'reason' from holdfast.event where kind = 'dead_letter.ignored'"
    assert await harness.engine.database.fetchval(detail) == reason
