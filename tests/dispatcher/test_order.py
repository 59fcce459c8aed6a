"""Which task is next: priority first, fair between lanes, and nobody starves."""

from __future__ import annotations

from collections import Counter

from holdfast.core.selection import AGED_SLOT_EVERY
from holdfast.testing.factories import a_task


async def actions(dispatcher, leases) -> Counter[str]:
    return Counter([(await dispatcher.task(lease.task_id)).action for lease in leases])


async def test_a_lower_number_goes_first(dispatcher):
    for priority in (9, 0, 5):
        await dispatcher.enqueue(a_task(priority=priority))
    taken = [(await dispatcher.task(lease.task_id)).priority for lease in await dispatcher.claim(2)]
    assert sorted(taken) == [0, 5]


async def test_equal_priorities_go_oldest_first(dispatcher):
    tasks = await dispatcher.enqueue_many(a_task(), [{}] * 5)
    taken = [(await dispatcher.claim_one()).task_id for _ in range(5)]
    assert taken == [task.task_id for task in tasks]


async def test_a_busy_lane_leaves_room_for_a_quiet_one(dispatcher):
    await dispatcher.enqueue_many(a_task(action="shop.busy"), [{}] * 500)
    await dispatcher.enqueue_many(a_task(action="shop.quiet"), [{}] * 5)
    taken = await actions(dispatcher, await dispatcher.claim(10))
    assert taken["shop.quiet"] >= 4


async def test_single_claims_go_round_the_lanes_too(dispatcher):
    for action in ("shop.a", "shop.b", "shop.c"):
        await dispatcher.enqueue_many(a_task(action=action), [{}] * 20)
    taken = await actions(dispatcher, [await dispatcher.claim_one() for _ in range(24)])
    assert min(taken.values()) >= 6


async def test_the_lowest_priority_is_not_starved_by_a_flood(dispatcher):
    old = await dispatcher.enqueue(a_task(action="shop.old", priority=9))
    await dispatcher.enqueue_many(a_task(action="shop.flood", priority=0), [{}] * 100)
    taken = [(await dispatcher.claim_one()).task_id for _ in range(AGED_SLOT_EVERY + 1)]
    assert old.task_id in taken


async def test_a_worker_is_given_only_actions_it_has(dispatcher):
    await dispatcher.enqueue(a_task(action="shop.known"))
    claimer = await dispatcher._claimer("first")
    await dispatcher.enqueue_many(a_task(action="shop.unknown"), [{}] * 10)
    claimer.identity.actions.remove("shop.unknown")
    assert await actions(dispatcher, await dispatcher.claim(10)) == {"shop.known": 1}
