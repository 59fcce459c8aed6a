"""What guards a launch: slots, the attempt a launch is for, its tokens, and the way back from a failed one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from tests.guards.checks.stage import Stage, check, refuses

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.launching import launch as launching
from holdfast.engine.launching.attach import Reservation, attach
from holdfast.engine.launching.launch import Launch, Launchable
from holdfast.errors import Conflict
from holdfast.testing.factories import a_task

T = TypeVar("T")
ACTION = "shop.charge"
LAUNCHER = "test"


async def launchable(stage: Stage, count: int = 1) -> list[Launchable]:
    await stage.engine.catalog.declare(1, ACTION, "default", RetryPolicy(), "", launcher=LAUNCHER)
    for _ in range(count):
        await stage.harness.enqueue(a_task(action=ACTION, max_losses=5))
    return await launching.find_launchable(stage.engine.database)


async def begun(stage: Stage, one: Launchable | None = None) -> Launch:
    """A launch with slot and reservation, about to be launched."""
    one = one or (await launchable(stage))[0]
    holder = await launching.take_slot(stage.engine.database, one, slots=9)
    assert holder is not None
    launch = await launching.reserve_launch(stage.engine.database, one, holder, launch_seconds=300)
    assert launch is not None
    return launch


def told(launch: Launch) -> Reservation:
    return Reservation(launch.of.task_id, launch.of.attempt, launch.lease_token, launch.token)


async def fail(stage: Stage, launch: Launch) -> None:
    await launching.launch_failed(stage.engine.database, stage.engine.catalog, launch, "no capacity")


async def lose(stage: Stage) -> None:
    """Let the reservation's time pass, and take the task up again."""
    await stage.clock.advance(seconds=301)
    assert await stage.harness.reap_once() == 1


async def held(stage: Stage) -> int:
    return int(await stage.value("select count(*) from holdfast.launch_slot s where holdfast.is_slot_held(s)"))


@check
async def a_stale_launcher_reserves_no_later_attempt(stage: Stage) -> None:
    [stale] = await launchable(stage)
    await begun(stage, stale)
    await lose(stage)
    holder = await launching.take_slot(stage.engine.database, stale, slots=9)
    assert holder is not None
    assert await launching.reserve_launch(stage.engine.database, stale, holder, launch_seconds=300) is None


@check
async def a_reservation_needs_the_slot_it_was_made_with(stage: Stage) -> None:
    [one] = await launchable(stage)
    holder = await launching.take_slot(stage.engine.database, one, slots=1)
    assert holder is not None
    await stage.clock.advance(seconds=launching.SLOT_SECONDS + 1)
    assert await launching.reserve_launch(stage.engine.database, one, holder, launch_seconds=300) is None


@check
async def a_token_past_its_time_cannot_be_used(stage: Stage) -> None:
    launch = await begun(stage)
    await stage.engine.database.fetch("update holdfast.launch set token_expires_at = holdfast.instant()")
    with refuses(Conflict):
        await stage.harness.attach(told(launch))


@check
async def a_token_of_an_earlier_attempt_cannot_be_used(stage: Stage) -> None:
    first = await begun(stage)
    await lose(stage)
    [again] = await launching.find_launchable(stage.engine.database)
    second = await begun(stage, again)
    with refuses(Conflict):
        await stage.harness.attach(msgspec.structs.replace(told(second), token=first.token))


@check
async def attaching_spends_the_tokens_of_its_attempt_alone(stage: Stage) -> None:
    await begun(stage)
    await lose(stage)
    [again] = await launching.find_launchable(stage.engine.database)
    second = await begun(stage, again)
    await stage.harness.attach(told(second))
    assert await stage.value("select count(*) from holdfast.launch where state = 'p'") == 1


@check
async def a_slot_that_was_taken_meanwhile_is_not_taken_again(stage: Stage) -> None:
    found = await launchable(stage, 2)
    async with stage.engine.database.transaction() as session:
        await session.fetch(
            "insert into holdfast.launch_slot values ($1, 1, 1, 1, 1, gen_random_uuid(), holdfast.instant() + '1h')",
            LAUNCHER,
        )
        taking = asyncio.ensure_future(launching.take_slot(stage.engine.database, found[0], slots=1))
        await stage.waits(taking)
    assert await taking is None


@check
async def the_slot_of_an_attempt_that_is_over_is_free(stage: Stage) -> None:
    one, other = await launchable(stage, 2)
    holder = await launching.take_slot(stage.engine.database, one, slots=1)
    assert holder is not None
    launch = await launching.reserve_launch(stage.engine.database, one, holder, launch_seconds=300)
    assert launch is not None and await launching.take_slot(stage.engine.database, other, slots=1) is None
    await stage.harness.settle(await stage.harness.attach(told(launch)), Completed(b"1"))
    assert await launching.take_slot(stage.engine.database, other, slots=1) is not None


@check
async def a_slot_of_an_open_attempt_is_not_freed(stage: Stage) -> None:
    launch = await begun(stage)
    await stage.harness.attach(told(launch))
    await launching.tidy_launches(stage.engine.database)
    assert await held(stage) == 1


@check
async def only_the_launch_of_the_attempt_is_written_down(stage: Stage) -> None:
    launch = await begun(stage)
    wrong = msgspec.structs.replace(launch, of=msgspec.structs.replace(launch.of, attempt=7))
    await launching.launched(stage.engine.database, wrong, "handle")
    assert await stage.value("select handle from holdfast.launch") is None


@check
async def a_launch_taken_back_is_not_written_down(stage: Stage) -> None:
    launch = await begun(stage)
    await fail(stage, launch)
    await launching.launched(stage.engine.database, launch, "handle")
    assert await stage.value("select handle from holdfast.launch") is None


@check
async def a_failed_launch_takes_nothing_back_from_a_worker_that_came(stage: Stage) -> None:
    launch = await begun(stage)
    lease = await stage.harness.attach(told(launch))
    await fail(stage, launch)
    assert await stage.value("select failures from holdfast.launch") == 0
    await stage.harness.settle(lease, Completed(b"1"))


@check
async def a_failed_launch_waits_for_a_worker_that_attaches(stage: Stage) -> None:
    launch = await begun(stage)
    async with stage.engine.database.transaction() as session:
        identity = (await stage.harness._claimer("first")).identity
        await attach(session, identity, launch.of.task_id, launch.of.attempt, launch.token)
        failing = asyncio.ensure_future(fail(stage, launch))
        await stage.waits(failing)
    await failing
    assert await stage.value("select state::text || failures from holdfast.launch") == "a0"


@check
async def a_launch_under_way_is_not_taken_over(stage: Stage) -> None:
    await begun(stage)
    assert await launching.adopt_launch(stage.engine.database, [LAUNCHER]) is None


@check
async def a_launch_whose_reservation_is_over_is_not_taken_over(stage: Stage) -> None:
    await begun(stage)
    await lose(stage)
    assert await launching.adopt_launch(stage.engine.database, [LAUNCHER]) is None


@check
async def two_that_take_over_get_different_launches(stage: Stage) -> None:
    for one in await launchable(stage, 2):
        await begun(stage, one)
    await stage.clock.advance(seconds=61)
    async with stage.engine.database.transaction() as session:
        await session.fetch("select from holdfast.launch order by launching_until limit 1 for update")
        assert await at_once(stage, launching.adopt_launch(stage.engine.database, [LAUNCHER])) is not None


async def at_once(stage: Stage, verb: Coroutine[Any, Any, T]) -> T:
    """What the verb answers; it must not wait for a lock."""
    doing = asyncio.ensure_future(verb)
    try:
        await stage.waits(doing)
        assert doing.done(), "it waits for a lock"
        return await doing
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def looked_at(stage: Stage) -> list[int]:
    found = await launching.open_launches(stage.engine.database, LAUNCHER, asked_seconds=10)
    return [one.attempt for one in found]


@check
async def only_launches_nobody_attached_to_are_asked_about(stage: Stage) -> None:
    launch = await begun(stage)
    await stage.engine.database.fetch("update holdfast.launch set handle = 'handle', launched_at = created_at")
    await stage.clock.advance(seconds=11)
    assert await looked_at(stage) == []
    await launching.launched(stage.engine.database, launch, "handle")
    await stage.clock.advance(seconds=11)
    assert await looked_at(stage) == [1]


@check
async def one_of_two_asks_about_a_launch(stage: Stage) -> None:
    launch = await begun(stage)
    await launching.launched(stage.engine.database, launch, "handle")
    await stage.clock.advance(seconds=11)
    async with stage.engine.database.transaction() as session:
        await session.fetch("select from holdfast.launch for update")
        assert await at_once(stage, looked_at(stage)) == []


async def launched_twice(stage: Stage) -> Launch:
    """Two attempts of a task that were launched; the first is over."""
    first = await begun(stage)
    await launching.launched(stage.engine.database, first, "first")
    await lose(stage)
    [again] = await launching.find_launchable(stage.engine.database)
    second = await begun(stage, again)
    await launching.launched(stage.engine.database, second, "second")
    return second


@check
async def looking_at_a_launch_marks_it_alone(stage: Stage) -> None:
    await launched_twice(stage)
    await looked_at(stage)
    seconds = "select count(distinct looked_at) from holdfast.launch"
    assert await stage.value(seconds) == 2


@check
async def only_open_reservations_are_asked_about(stage: Stage) -> None:
    await launched_twice(stage)
    assert await looked_at(stage) == []
    await stage.clock.advance(seconds=11)
    assert await looked_at(stage) == [2]


@check
async def forgetting_a_launch_leaves_the_next_alone(stage: Stage) -> None:
    await launched_twice(stage)
    [over] = await launching.over_launches(stage.engine.database, LAUNCHER)
    await launching.forget_launch(stage.engine.database, over)
    assert await stage.value("select array_agg(attempt) from holdfast.launch") == [2]


@check
async def a_launch_that_failed_dispatched_no_attempt(stage: Stage) -> None:
    launch = await begun(stage)
    await fail(stage, launch)
    await stage.harness.cancel(str(launch.of.task_id))
    [over] = await launching.over_launches(stage.engine.database, LAUNCHER)
    await launching.forget_launch(stage.engine.database, over)
    assert await stage.value("select count(*) from holdfast.dispatched") == 0


@check
async def putting_back_a_launch_leaves_the_next_alone(stage: Stage) -> None:
    await launched_twice(stage)
    [over] = await launching.over_launches(stage.engine.database, LAUNCHER)
    await stage.clock.advance(seconds=11)
    await launching.put_back_launch(stage.engine.database, over)
    assert await looked_at(stage) == [2]
