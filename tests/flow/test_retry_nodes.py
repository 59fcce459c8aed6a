"""Retry and re-drive of nodes that cannot go: refused with where they stand, never as unknown (S0)."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow, a_node

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.lifecycle.dead_letters.commands import repeated_by
from holdfast.errors import Conflict
from holdfast.testing import factories as a

VERBS = pytest.mark.parametrize("verb", ["retry", "redrive"])


async def refusal(harness, verb, task_id):
    with pytest.raises(Conflict) as refused:
        await getattr(harness, verb)(task_id)
    assert refused.value.code == "execution_not_retryable"
    return refused.value


async def fail_one(harness):
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))


@VERBS
async def test_a_node_that_never_became_a_task_is_refused_with_its_state(harness, verb):
    flow = a_flow("a>b")
    run_id = await harness.runs.start(flow)
    await fail_one(harness)
    refused = await refusal(harness, verb, harness.runs.task_id(run_id, flow, "b"))
    assert refused.detail == "cannot retry execution in status 'upstream_failed'"
    assert f"holdfast run retry {run_id}" in refused.advice


@VERBS
async def test_a_node_that_waits_for_another_is_blocked(harness, verb):
    flow = a_flow("a>b")
    run_id = await harness.runs.start(flow)
    refused = await refusal(harness, verb, harness.runs.task_id(run_id, flow, "b"))
    assert refused.detail == "cannot retry execution in status 'blocked'"


async def test_a_re_drive_of_a_task_that_retries_by_itself_says_so(harness):
    task_id = await a.a_retrying_task(harness)
    refused = await refusal(harness, "redrive", task_id)
    assert refused.detail == "cannot retry execution in status 'retrying'"
    assert f"holdfast task retry {task_id}" in refused.advice


@VERBS
async def test_a_failed_node_of_a_canceled_run_is_refused_before_its_budget_is_looked_at(harness, verb):
    flow = a_flow(alone=("a", "b"))
    run_id = await harness.runs.start(flow)
    lease = await harness.claim_one()
    await harness.settle(lease, Failed(a.a_failure()))
    await harness.runs.cancel(run_id)
    refused = await refusal(harness, verb, lease.task_id)
    assert refused.detail == "cannot retry execution in status 'canceled'"
    assert f"Run {run_id} was canceled" in refused.advice
    with pytest.raises(Conflict, match="in status 'canceled'"):
        await repeated_by(harness.engine, 1, int(lease.task_id))
    assert [one.state for one in await harness.letters(lease.task_id)] == ["open"]


async def test_a_failed_item_waits_for_its_node(harness):
    node = a_node("each", kind=NodeKind.MAP, map_over="x", config={"x": [1, 2]})
    await harness.runs.start(FlowDefinition(name="shop.map", nodes=(node,)).validated())
    first, _ = await harness.claim(2)
    await harness.settle(first, Failed(a.a_failure()))
    refused = await refusal(harness, "redrive", first.task_id)
    assert "when its node is over" in refused.advice
    assert [one.state for one in await harness.letters(first.task_id)] == ["open"]


async def test_a_failed_item_waits_for_its_node_also_when_something_else_of_its_run_failed(harness):
    """Its run could go again for the other, and the item would not: nobody is told that it does."""
    node = a_node("each", kind=NodeKind.MAP, map_over="x", config={"x": [1, 2]})
    flow = FlowDefinition(name="shop.map", nodes=(node, a_node("other"))).validated()
    run_id = await harness.runs.start(flow)
    leases = await harness.claim(3)
    other = harness.runs.task_id(run_id, flow, "other")
    item = next(lease for lease in leases if lease.task_id != other)
    for lease in leases:
        if lease.task_id in (other, item.task_id):
            await harness.settle(lease, Failed(a.a_failure()))
    refused = await refusal(harness, "redrive", item.task_id)
    assert "when its node is over" in refused.advice
    assert [(await harness.task(one)).state for one in (item.task_id, other)] == ["failed"] * 2
