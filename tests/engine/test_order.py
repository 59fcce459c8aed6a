"""Which task is next: priority first, fair between lanes, and nobody starves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.core.flows import a_node

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.selection import AGED_SLOT_EVERY
from holdfast.engine.maintenance.retention import begin_today
from holdfast.testing.factories import ACTION, Draft, a_task


async def actions(harness, leases) -> Counter[str]:
    return Counter([(await harness.task(lease.task_id)).action for lease in leases])


async def test_a_lower_number_goes_first(harness):
    for priority in (9, 0, 5):
        await harness.enqueue(a_task(priority=priority))
    taken = [(await harness.task(lease.task_id)).priority for lease in await harness.claim(2)]
    assert sorted(taken) == [0, 5]


async def test_equal_priorities_go_oldest_first(harness):
    tasks = await harness.enqueue_many(a_task(), [{}] * 5)
    taken = [(await harness.claim_one()).task_id for _ in range(5)]
    assert taken == [task.task_id for task in tasks]


async def test_a_busy_lane_leaves_room_for_a_quiet_one(harness):
    await harness.enqueue_many(a_task(action="shop.busy"), [{}] * 500)
    await harness.enqueue_many(a_task(action="shop.quiet"), [{}] * 5)
    taken = await actions(harness, await harness.claim(10))
    assert taken["shop.quiet"] >= 4


async def test_single_claims_go_round_the_lanes_too(harness):
    for action in ("shop.a", "shop.b", "shop.c"):
        await harness.enqueue_many(a_task(action=action), [{}] * 20)
    taken = await actions(harness, [await harness.claim_one() for _ in range(24)])
    assert min(taken.values()) >= 6


async def test_the_lowest_priority_is_not_starved_by_a_flood(harness):
    old = await harness.enqueue(a_task(action="shop.old", priority=9))
    await harness.enqueue_many(a_task(action="shop.flood", priority=0), [{}] * 100)
    taken = [(await harness.claim_one()).task_id for _ in range(AGED_SLOT_EVERY + 1)]
    assert old.task_id in taken


async def test_a_worker_is_given_only_actions_it_has(harness):
    await harness.enqueue(a_task(action="shop.known"))
    claimer = await harness._claimer("first")
    await harness.enqueue_many(a_task(action="shop.unknown"), [{}] * 10)
    claimer.identity.actions.remove("shop.unknown")
    assert await actions(harness, await harness.claim(10)) == {"shop.known": 1}


def one_node(action: str = ACTION, **fields: Any) -> FlowDefinition:
    return FlowDefinition(name="shop.nightly", nodes=(a_node("only", action, **fields),)).validated()


async def until_taken(harness, wanted: set[int], flood: Draft, *, want: int = 1) -> int:
    """Claim `want` at a time, and put in as much of the flood as was claimed of it, until all wanted tasks are taken;
    answers how many tasks that took."""
    claimed = 0
    while wanted and claimed < 20 * AGED_SLOT_EVERY:
        leases = await harness.claim(want)
        claimed += len(leases)
        wanted = wanted - {int(lease.task_id) for lease in leases}
        for lease in leases:
            await harness.settle(lease, Completed(b"1"))
        await harness.enqueue_many(flood, [{}] * len(leases))
    assert not wanted
    return claimed


@pytest.mark.parametrize("want", [1, 5])
async def test_a_node_is_not_starved_by_plain_tasks_of_its_own_action(harness, want):
    """All ids of plain tasks of a day are smaller than those of its nodes, also of tasks that come later."""
    flow = one_node()
    await harness.enqueue_many(a_task(), [{}] * 20)
    run = await harness.runs.start(flow)
    node = int(harness.runs.task_id(run, flow, "only"))
    assert await until_taken(harness, {node}, a_task(), want=want) <= 10


@pytest.mark.parametrize("priority", [5, 9])
@pytest.mark.parametrize("want", [1, 5])
async def test_a_node_is_not_starved_by_a_flood_of_a_better_priority(harness, priority, want):
    flood, flow = a_task(action="shop.flood", priority=0), one_node()
    await harness.enqueue_many(flood, [{}] * 20)
    run = await harness.runs.start(flow, priority=priority)
    node = int(harness.runs.task_id(run, flow, "only"))
    assert await until_taken(harness, {node}, flood, want=want) <= 3 * AGED_SLOT_EVERY


async def test_plain_tasks_are_not_starved_by_a_flood_of_nodes(harness):
    plain = int((await harness.enqueue(a_task(priority=9))).task_id)
    flow = one_node("shop.flood")
    for _ in range(3 * AGED_SLOT_EVERY):
        await harness.runs.start(flow, priority=0)
    taken = [int((await harness.claim_one()).task_id) for _ in range(2 * AGED_SLOT_EVERY)]
    assert plain in taken


@pytest.mark.parametrize("flood", [a_task(), a_task(action="shop.flood", priority=0)])
async def test_items_are_not_starved_by_plain_tasks(harness, flood):
    await harness.runs.start(one_node(kind=NodeKind.MAP, map_over="x", config={"x": [1, 2, 3]}))
    rows = await harness.engine.database.fetch("select task_id from holdfast.live where run_id is not null")
    await harness.enqueue_many(flood, [{}] * 20)
    assert len(rows) == 3
    await until_taken(harness, {row["task_id"] for row in rows}, flood)


async def test_nodes_are_taken_in_their_order_and_plain_tasks_in_theirs(harness):
    flow = one_node()
    plain = await harness.enqueue_many(a_task(), [{}] * 8)
    runs = [await harness.runs.start(flow) for _ in range(8)]
    taken = [(await harness.claim_one()).task_id for _ in range(16)]
    nodes = [harness.runs.task_id(run, flow, "only") for run in runs]
    assert [one for one in taken if one in nodes] == nodes
    assert [one for one in taken if one not in nodes] == [task.task_id for task in plain]


@pytest.mark.parametrize(("plain", "nodes"), [(1, 30), (30, 1), (10, 10)])
async def test_a_worker_is_filled_with_whatever_kind_there_is(harness, plain, nodes):
    await harness.enqueue_many(a_task(), [{}] * plain)
    await harness.runs.start_many(one_node(), [{}] * nodes)
    assert len(await harness.claim(20)) == 20
    assert len(await harness.claim(20)) == min(20, plain + nodes - 20)


async def test_a_worker_is_filled_whatever_the_priority(harness):
    await harness.enqueue_many(a_task(priority=9), [{}] * 100)
    await harness.enqueue(a_task(priority=0))
    assert len(await harness.claim(20)) == 20


async def test_an_older_block_goes_before_a_younger_one(harness, clock):
    """The ids of a day's nodes are smaller than those of the next day's plain tasks."""
    flow = one_node()
    old = await harness.enqueue_many(a_task(), [{}] * 3)
    run = await harness.runs.start(flow)
    await clock.advance(seconds=86_400)
    await begin_today(harness.engine.database)
    young = await harness.enqueue_many(a_task(), [{}] * 3)
    young_run = await harness.runs.start(flow)
    taken = [(await harness.claim_one()).task_id for _ in range(8)]
    node, young_node = (harness.runs.task_id(one, flow, "only") for one in (run, young_run))
    assert {*taken[:4]} == {node, *(task.task_id for task in old)}
    assert {*taken[4:]} == {young_node, *(task.task_id for task in young)}
    assert taken[0] == old[0].task_id or taken[1] == old[0].task_id


async def test_every_half_of_a_block_begins_where_claims_expect_it(harness, clock):
    for _ in range(2):
        await clock.advance(seconds=86_400)
        await begin_today(harness.engine.database)
    rows = await harness.engine.database.fetch("select first_id, last_id from holdfast.block")
    assert len(rows) == 3
    for first_id, last_id in rows:
        assert first_id % 5_000_000_000 == ((first_id + last_id) // 2 + 1) % 5_000_000_000 == 0


async def test_the_room_of_a_limited_queue_is_not_all_for_the_best_priority(harness):
    flow = one_node()
    await harness.enqueue_many(a_task(priority=0), [{}] * 20)
    old = int((await harness.enqueue(a_task(priority=9))).task_id)
    run = await harness.runs.start(flow, priority=9)
    await harness.limit(max_running=1)
    wanted = {old, int(harness.runs.task_id(run, flow, "only"))}
    await until_taken(harness, wanted, a_task(priority=0), want=10)


async def test_a_queue_without_room_does_not_take_the_slots_of_others(harness):
    """Its old tasks cannot start: the next oldest may."""
    await harness.enqueue_many(a_task(queue="full", priority=9), [{}] * 2)
    await harness.limit("full", max_running=1)
    assert len(await harness.claim(1)) == 1
    old = int((await harness.enqueue(a_task(action="shop.old", priority=9))).task_id)
    flood = a_task(action="shop.flood", priority=0)
    await harness.enqueue_many(flood, [{}] * 20)
    await until_taken(harness, {old}, flood)


async def test_workers_that_take_one_task_and_leave_go_round_together(harness):
    old = (await harness.enqueue(a_task(action="shop.old", priority=9))).task_id
    for action in ("shop.a", "shop.b", "shop.c"):
        await harness.enqueue_many(a_task(action=action, priority=0), [{}] * 20)
    leases = [await harness.claim_one(worker=f"worker-{number}") for number in range(2 * AGED_SLOT_EVERY)]
    assert old in [lease.task_id for lease in leases]
    taken = await actions(harness, leases)
    assert min(taken[action] for action in ("shop.a", "shop.b", "shop.c")) >= 4
