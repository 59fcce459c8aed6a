"""Nodes that fail without a task have dead letters: they are found, run again, left, deleted, and kept until then."""

from __future__ import annotations

import pytest
from tests.core.flows import a_map, a_node, a_parent, a_sum, a_wait, an_order_edge
from tests.engine.test_retain_ended import WHO, later, retain
from tests.flow.steps import finish, step

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.campaigns.commands import show_campaign, start_campaign
from holdfast.engine.lifecycle.dead_letters.commands import ignore, redrive, redrive_group, repeated_by, resolve
from holdfast.engine.lifecycle.dead_letters.sweep import repair_letters_once
from holdfast.engine.lifecycle.tasks.delete import delete_group, delete_task
from holdfast.engine.queries.dead_letters import dead_groups, list_letters
from holdfast.errors import NotFound
from holdfast.testing.factories import a_failure


async def letters(harness):
    """Newest first, as (state, disposition)."""
    found = await list_letters(harness.engine.database, harness.engine.tenant_id)
    return [(one.state, one.disposition) for one in found]


async def letter_of(harness):
    [found] = await list_letters(harness.engine.database, harness.engine.tenant_id)
    return found


async def a_rejection(harness, comment=""):
    run = await harness.runs.start(a_wait(config={"approval": True}))
    await harness.runs.answer(run, "paid", is_given=False, reason=comment)
    return run


async def a_timeout(harness, clock):
    run = await harness.runs.start(a_wait(timeout_seconds=60))
    await clock.advance(61)
    await harness.runs.repair_once()
    return run


async def test_a_rejected_approval_is_found_by_who_looks_in_the_morning_and_asks_again(harness):
    run = await a_rejection(harness)
    letter = await letter_of(harness)
    assert (letter.state, letter.code, letter.action, letter.run_id) == ("open", "approval_rejected", "payment", run)
    assert await repeated_by(harness.engine, 1, int(letter.task_id)) == []
    await redrive(harness.engine, 1, int(letter.task_id), **WHO)
    assert (await harness.runs.nodes(run))["paid"] == "running"
    assert await letters(harness) == [("retrying", "retry_dispatched")]
    await harness.runs.answer(run, "paid", is_given=True)
    await finish(harness)
    assert (await harness.runs.state(run), await letters(harness)) == (
        "completed",
        [("resolved", "retry_succeeded")],
    )


async def test_whoever_rejects_again_is_not_asked_again_by_itself(harness, clock):
    run = await a_rejection(harness)
    await harness.redrive(int(run) + 1)
    await harness.runs.answer(run, "paid", is_given=False, reason="still not")
    assert await letters(harness) == [("open", ""), ("resolved", "superseded")]
    await clock.advance("1h")
    await repair_letters_once(harness.engine.database)
    await harness.sweep_once()
    assert await harness.runs.state(run) == "failed"
    [group] = await dead_groups(harness.engine.database, 1)
    assert (group.count, group.letters) == (1, 1)


async def test_a_list_that_is_none_fails_again_at_once_and_has_one_letter(harness):
    run = await harness.runs.start(a_map())
    await finish(harness, outputs={0: {"all": 7}})
    first = await letter_of(harness)
    assert first.action == a_map().nodes[1].action
    await harness.redrive(first.task_id)
    assert await letters(harness) == [("open", ""), ("resolved", "superseded")]
    await harness.runs.retry(run, only="list")
    await finish(harness, outputs={0: {"all": [1]}})
    await repair_letters_once(harness.engine.database)
    assert [state for state, _ in await letters(harness)] == ["resolved", "resolved"]


async def test_a_group_of_waits_that_ran_out_is_asked_for_and_dispatched(harness, clock):
    run = await a_timeout(harness, clock)
    other = await a_timeout(harness, clock)
    [group] = await dead_groups(harness.engine.database, 1)
    assert (group.count, group.code) == (2, "DAG_TASK_EXECUTION_TIMEOUT")
    await redrive_group(harness.engine, 1, group.fingerprint, **WHO)
    await harness.sweep_once()
    await harness.runs.signal("payment", 1)
    await finish(harness)
    assert [await harness.runs.state(one) for one in (run, other)] == ["completed", "completed"]
    assert [state for state, _ in await letters(harness)] == ["resolved", "resolved"]


async def test_a_campaign_counts_waits_that_were_answered_and_those_that_ran_out_again(harness, clock):
    for _ in range(2):
        await a_timeout(harness, clock)
    [group] = await dead_groups(harness.engine.database, 1)
    view = await start_campaign(harness.engine, 1, group.fingerprint, canary=2, **WHO)
    await harness.campaigns_once()
    first = (await list_letters(harness.engine.database, 1))[-1]
    await harness.runs.signal("payment", 1, run_id=first.run_id)
    await clock.advance(61)
    await harness.runs.repair_once()
    await finish(harness)
    await harness.campaigns_once()
    shown = await show_campaign(harness.engine, 1, int(view.campaign_id))
    assert (shown.succeeded, shown.returned, shown.outstanding) == (1, 1, 0)


async def test_a_letter_that_somebody_held_when_its_node_completed_is_resolved_by_a_pass(harness):
    run = await a_rejection(harness)
    await harness.redrive(int(run) + 1)
    database = harness.engine.database
    async with database.transaction() as session:
        await session.fetch("select from holdfast.dead_letter for update")
        await harness.runs.answer(run, "paid", is_given=True)
    assert await letters(harness) == [("retrying", "retry_dispatched")]
    assert await repair_letters_once(database) == 1
    assert await letters(harness) == [("resolved", "retry_succeeded")]
    await finish(harness)


async def test_a_run_that_failed_without_a_task_stays_until_somebody_dealt_with_it(harness, clock):
    run = await a_timeout(harness, clock)
    task_id = int(run) + 1
    await later(harness, clock)
    assert (await retain(harness), await harness.runs.state(run)) == (0, "failed")
    await ignore(harness.engine, 1, task_id=task_id, **WHO)
    await later(harness, clock, days=40)
    await retain(harness)
    assert await harness.runs.state(run) == "failed"
    await redrive(harness.engine, 1, task_id, **WHO)
    await clock.advance(61)
    await harness.runs.repair_once()
    await resolve(harness.engine, 1, task_id=task_id, **WHO)
    await retain(harness)
    assert await harness.runs.state(run) == "failed"
    await later(harness, clock)
    await retain(harness)
    with pytest.raises(NotFound):
        await harness.task(str(task_id))


async def test_a_run_stays_for_the_sake_of_what_failed_two_levels_below_on_another_day(harness, clock):
    await harness.runs.snapshot(a_sum(1))
    await harness.runs.snapshot(a_parent())
    middle = a_node("middle", action="shop.parent", kind=NodeKind.FLOW)
    nodes = (a_node("first"), middle)
    flow = FlowDefinition(name="shop.top", nodes=nodes, edges=(an_order_edge("first>middle"),)).validated()
    run = await harness.runs.start(flow)
    await later(harness, clock, days=0)
    await step(harness)
    await step(harness, fail=[0])
    assert await harness.runs.state(run) == "failed"
    await later(harness, clock, days=40)
    assert (await retain(harness), await harness.runs.state(run)) == (0, "failed")


@pytest.mark.parametrize("is_group", [True, False])
async def test_a_run_that_failed_without_a_task_can_be_deleted(harness, is_group):
    await a_rejection(harness)
    letter = await letter_of(harness)
    if is_group:
        done = await delete_group(harness.engine, 1, letter.fingerprint, **WHO)
    else:
        done = await delete_task(harness.engine, 1, int(letter.task_id), **WHO)
    assert (done.runs, done.letters, await letters(harness)) == (1, 1, [])


async def test_abandoned_it_cancels_the_run_that_waits_on_it(harness):
    nodes = (*a_wait(config={"approval": True}).nodes, a_node("other"))
    flow = FlowDefinition(name="shop.wait", version=2, nodes=nodes, edges=a_wait().edges).validated()
    run = await harness.runs.start(flow)
    await harness.runs.answer(run, "paid", is_given=False)
    await ignore(harness.engine, 1, task_id=int(run) + 1, abandons=True, **WHO)
    assert (await harness.runs.state(run), await letters(harness)) == ("canceled", [("ignored", "abandoned")])


async def test_what_failed_further_down_has_its_letter_there(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    await harness.settle(await harness.claim_one(), Failed(a_failure()))
    await harness.runs.repair_once()
    assert (await harness.runs.state(run), (await letter_of(harness)).run_id != run) == ("failed", True)
    await harness.runs.retry(run)
    await harness.runs.repair_once()
    await harness.settle(await harness.claim_one(), Completed(b'{"v": 1}'))
    await step(harness, outputs={1: {"v": 1}})
    await finish(harness, outputs={2: 1})
    assert await harness.runs.state(run) == "completed"
