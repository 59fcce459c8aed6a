"""Maps: a node that runs once per member of a list, and what becomes of members when it runs again."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow, a_map, a_node, an_order_edge
from tests.flow.steps import finish, step

from holdfast.codec import json_codec
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.lifecycle.dead_letters.commands import redrive_group
from holdfast.engine.queries.dead_letters import dead_groups, list_letters
from holdfast.engine.queries.task_detail import show_task
from holdfast.engine.queries.task_snapshot import capture
from holdfast.engine.queries.verify import verify
from holdfast.errors import Conflict
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.factories import a_failure


async def test_a_map_runs_once_per_member_and_gathers_in_order(harness):
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": [5, 6, 7]}})
    leases = await harness.claim(10)
    assert [json_codec.decode(lease.claimed.input) for lease in leases] == [{"by": 2, "x": x} for x in (5, 6, 7)]
    for lease in reversed(leases):
        given = json_codec.decode(lease.claimed.input)
        await harness.settle(lease, Completed(json_codec.encode(given["x"] * 2, bytes_max=99, what="output")))
    assert await step(harness) == [{"results": [10, 12, 14]}]
    assert await harness.runs.state(run) == "completed"


async def test_a_map_over_nothing_completes_with_nothing(harness):
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": []}})
    assert await step(harness) == [{"results": []}]
    assert await harness.runs.state(run) == "completed"


async def test_a_map_over_no_list_fails_with_its_code(harness):
    run = await harness.runs.start(a_map())
    await finish(harness, outputs={0: {"all": 7}})
    assert await harness.runs.nodes(run) == {"list": "completed", "double": "failed", "gather": "upstream_failed"}
    rows = await harness.engine.database.fetch("select code from holdfast.failure")
    assert [row["code"] for row in rows] == ["DAG_VALIDATION_MAP_LIST_INVALID"]


async def test_a_map_with_a_limit_runs_that_many_members_at_once(harness):
    run = await harness.runs.start(a_map(concurrency=2))
    await step(harness, outputs={0: {"all": [1, 2, 3, 4, 5]}})
    assert [len(await step(harness, outputs={1: 0})) for _ in range(4)] == [2, 2, 1, 1]
    assert await harness.runs.state(run) == "completed"


async def test_a_failed_member_fails_the_map_and_only_it_runs_again(harness):
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": [1, 2, 3]}})
    first, second, third = await harness.claim(10)
    await harness.settle(first, Completed(b"1"))
    await harness.settle(second, Failed(a_failure()))
    assert (await harness.runs.nodes(run))["double"] == "running"
    await harness.settle(third, Completed(b"3"))
    assert (await harness.runs.nodes(run))["double"] == "failed"
    await harness.runs.retry(run)
    [again] = await harness.claim(10)
    assert (again.task_id, again.attempt) == (second.task_id, 2)
    await harness.settle(again, Completed(b"2"))
    assert await step(harness) == [{"results": [1, 2, 3]}]
    assert await harness.runs.state(run) == "completed"


async def ended_items(harness, run, *outcomes):
    """Let the list and the members of a map end, and say which tasks the members were."""
    await step(harness, outputs={0: {"all": list(range(len(outcomes)))}})
    leases = await harness.claim(10)
    for lease, outcome in zip(leases, outcomes, strict=True):
        await harness.settle(lease, outcome)
    return [int(lease.task_id) for lease in leases]


async def test_members_that_a_re_drive_upstream_replaces_keep_their_place(harness):
    run = await harness.runs.start(a_map())
    old = await ended_items(harness, run, Completed(b"1"), Completed(b"2"), Failed(a_failure()))
    await harness.runs.retry(run, only="list")
    new = await ended_items(harness, run, Completed(b"7"))
    assert await step(harness) == [{"results": [7]}]
    assert await harness.runs.state(run) == "completed"
    database, catalog = harness.engine.database, harness.engine.catalog
    assert (await verify(database)).is_sound
    shown = [await show_task(database, catalog, DEFAULT_TENANT_ID, task_id) for task_id in (*old, *new)]
    assert [(one.state, one.generation, one.node, one.item, one.run_id) for one in shown] == [
        ("completed", 1, "double", 0, run),
        ("completed", 1, "double", 1, run),
        ("failed", 1, "double", 2, run),
        ("completed", 2, "double", 0, run),
    ]
    assert [bytes(one.input) for one in shown] == [b"null"] * 3 + [b'{"by":2,"x":0}']
    listed = await database.fetch("select task_id, node_no from holdfast.tasks where state = 'completed'")
    assert {(str(one), 1) for one in (*old[:2], *new)} <= {tuple(row) for row in listed}


async def test_the_letter_of_a_member_that_was_replaced_is_resolved_when_its_node_completed(harness):
    run = await harness.runs.start(a_map())
    await ended_items(harness, run, Failed(a_failure()))
    engine = harness.engine
    [group] = await dead_groups(engine.database, DEFAULT_TENANT_ID)
    await harness.runs.retry(run, only="list")
    await ended_items(harness, run, Completed(b"7"))
    await redrive_group(engine, DEFAULT_TENANT_ID, group.fingerprint, actor="anna", reason="gone")
    assert await harness.sweep_once() == 1
    assert [one.state for one in await list_letters(engine.database, DEFAULT_TENANT_ID)] == ["resolved"]
    assert await dead_groups(engine.database, DEFAULT_TENANT_ID) == []


async def test_what_is_under_way_behind_a_node_that_runs_again_is_let_go_once(harness):
    nodes = (a_node("a"), a_node("b", trigger_rule=TriggerRule.ALL_DONE))
    run = await harness.runs.start(FlowDefinition(name="shop.x", nodes=nodes, edges=(an_order_edge("a>b"),)))
    await step(harness, fail=[0])
    behind = await harness.claim_one()
    assert await harness.runs.retry(run) == ["a"]
    await step(harness)
    assert await harness.runs.nodes(run) == {"a": "completed", "b": "running"}
    await harness.settle(behind, Completed(b"1"))
    assert (await harness.runs.state(run), await harness.claim(10)) == ("completed", [])


async def test_a_node_whose_output_is_in_use_is_not_run_again(harness):
    run = await harness.runs.start(a_flow("a>b b>c"))
    await step(harness)
    with pytest.raises(Conflict, match="b is active"):
        await harness.runs.retry(run, only="a")
    await finish(harness)
    assert await harness.runs.retry(run, only="a") == ["a", "b", "c"]
    await harness.runs.cancel(run)


async def test_a_member_that_was_replaced_cannot_be_replayed_with_anothers_input(harness):
    run = await harness.runs.start(a_map())
    [old] = await ended_items(harness, run, Completed(b"1"))
    await step(harness)
    await harness.runs.retry(run, only="list")
    await ended_items(harness, run, Completed(b"7"))
    with pytest.raises(Conflict, match="run again with other items"):
        await capture(harness.engine.database, harness.engine.catalog, DEFAULT_TENANT_ID, old)


async def test_members_that_run_again_are_no_past_ones(harness):
    run = await harness.runs.start(a_map())
    await ended_items(harness, run, Completed(b"1"), Failed(a_failure()))
    await harness.runs.retry(run)
    assert await harness.engine.database.fetchval("select count(*) from holdfast.past_items") == 0
    await harness.runs.cancel(run)


async def test_canceling_a_run_cancels_its_members_also_those_not_released(harness):
    run = await harness.runs.start(a_map(concurrency=1))
    await step(harness, outputs={0: {"all": [1, 2, 3]}})
    await harness.runs.cancel(run)
    assert await harness.runs.state(run) == "canceled"
    assert not await harness.claim(10)
