"""What S0 says about dispatching a worker, each statement as a test of that name."""

from __future__ import annotations

import asyncio

import pytest
from tests.launchers.platform import LOSE_ANSWER, REFUSE, Fixed, profile, reservation_of

from holdfast import App
from holdfast.core.launching import LAUNCHES_MAX, attempt_of, token_hash
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.engine.engine import Engine
from holdfast.engine.launching import launch as verbs
from holdfast.engine.queries.dead_letters import list_letters
from holdfast.errors import LeaseLost
from holdfast.launchers.contract import LaunchState, LaunchStatus
from holdfast.launchers.loop import Launching
from holdfast.settings.settings import Settings
from holdfast.testing.factories import a_failure


async def test_no_available_slot_leaves_the_task_queued_without_a_reservation(
    launching, queue_up, harness, platform, why
):
    *_, last = await queue_up(3)
    assert await launching.launch_once() == 2
    assert await launching.launch_once() == 0
    task = await harness.task(last)
    assert (task.state, task.attempt) == (TaskState.QUEUED, 0)
    found = await why(last)
    assert found.code == "no_launch_slot" and "2/2 slots taken" in found.headline


async def test_slot_acquisition_is_atomic(engine, queue_up, slots):
    tasks = await queue_up(8)
    found = await verbs.find_launchable(engine.database)
    taken = await asyncio.gather(*(verbs.take_slot(engine.database, one, slots=3) for one in found))
    assert len(tasks) == len(taken) and len([one for one in taken if one is not None]) == 3
    assert len(await slots()) == 3


async def test_the_record_is_written_before_the_launch(launching, queue_up, harness, platform, engine):
    await queue_up()
    told = []

    async def look(order):
        told.append(await engine.database.fetchval("select state::text from holdfast.live"))

    platform.on_launch = look
    await launching.launch_once()
    assert told == ["v"]


async def test_a_duplicate_of_the_same_attempt_is_a_no_op_and_its_slot_is_freed(engine, queue_up, slots):
    [task] = await queue_up()
    [found] = await verbs.find_launchable(engine.database)
    holders = [await verbs.take_slot(engine.database, found, slots=2) for _ in range(2)]
    made = await asyncio.gather(
        *(verbs.reserve_launch(engine.database, found, holder, launch_seconds=120) for holder in holders)
    )
    assert len([one for one in made if one is not None]) == 1
    assert await slots() == [task]


async def test_a_duplicate_that_comes_after_the_attempt_is_a_no_op_too(engine, launching, queue_up, harness, platform):
    await queue_up(max_retries=3)
    [stale] = await verbs.find_launchable(engine.database)
    await launching.launch_once()
    lease = await harness.attach(reservation_of(platform.asked[0]))
    await harness.settle(lease, Failed(a_failure()))
    await engine.database.fetch("update holdfast.live set state = 'q', due_at = null, is_retrying = false")
    holder = await verbs.take_slot(engine.database, stale, slots=5)
    assert await verbs.reserve_launch(engine.database, stale, holder, launch_seconds=120) is None


async def test_two_loops_at_once_launch_each_attempt_once(engine, queue_up, platform):
    await queue_up(10)
    loops = [Launching(engine, Fixed({"test": profile(platform, slots=10)})) for _ in range(3)]
    await asyncio.gather(*(loop.launch_once() for loop in loops))
    assert len(platform.asked) == 10 == len(platform.running)


async def test_a_launch_failure_removes_the_reservation_and_frees_the_slot(
    launching, queue_up, harness, platform, slots, why
):
    [task] = await queue_up()
    platform.faults = [REFUSE]
    await launching.launch_once()
    assert (await harness.task(task)).attempt == 0 and await harness.attempts(task) == []
    assert await slots() == []
    found = await why(task)
    assert (
        found.code == "launch_failed"
        and "failed 1 time of 5" in found.headline
        and "no capacity" in str(found.evidence)
    )


async def test_the_same_attempt_is_launched_again_under_the_same_name(launching, queue_up, harness, platform, clock):
    [task] = await queue_up()
    platform.faults = [REFUSE]
    await launching.launch_once()
    assert await launching.launch_once() == 0  # it waits for its backoff
    await clock.advance(seconds=2)
    await harness.reconcile_once()
    await launching.launch_once()
    assert [(order.name, order.attempt) for order in platform.asked] == [(platform.asked[0].name, 1)] * 2
    lease = await harness.attach(reservation_of(platform.asked[1]))
    await harness.settle(lease, Completed(b"1"))
    assert [one.state for one in await harness.attempts(task)] == [AttemptState.COMPLETED]


async def test_after_five_failed_launches_the_task_fails_with_launch_failed(
    launching, queue_up, harness, platform, clock, engine, slots
):
    [task] = await queue_up(max_retries=3)
    platform.faults = [REFUSE] * LAUNCHES_MAX
    for _ in range(LAUNCHES_MAX):
        await launching.launch_once()
        await clock.advance(seconds=61)
        await harness.reconcile_once()
    assert (await harness.task(task)).state is TaskState.FAILED
    [attempt] = await harness.attempts(task)
    assert (attempt.attempt, attempt.code, attempt.reason) == (1, "launch_failed", "launch_failed")
    assert await slots() == [] and len(platform.asked) == LAUNCHES_MAX
    assert len(await list_letters(engine.database, 1)) == 1


async def test_an_answer_that_got_lost_is_one_worker(launching, queue_up, harness, platform, clock):
    """The worker came up although its launch counts as failed: it waits, and is the one that is launched again."""
    [task] = await queue_up()
    platform.faults = [LOSE_ANSWER]
    await launching.launch_once()
    [started] = platform.running.values()
    with pytest.raises(LeaseLost) as early:
        await harness.attach(reservation_of(started))
    assert early.value.fields["is_early"]
    await clock.advance(seconds=2)
    await harness.reconcile_once()
    await launching.launch_once()
    assert list(platform.running.values()) == [started]
    await harness.settle(await harness.attach(reservation_of(started)), Completed(b"1"))
    assert (await harness.task(task)).state is TaskState.COMPLETED


async def test_a_late_callback_cannot_clobber_another_attempt(launching, queue_up, harness, platform, clock):
    await queue_up()
    await launching.launch_once()
    await clock.advance(seconds=121)
    await harness.reap_once()
    await launching.launch_once()
    first, second = platform.asked
    assert (first.attempt, second.attempt) == (1, 2) and first.name != second.name
    with pytest.raises(LeaseLost):
        await harness.attach(reservation_of(first))
    await harness.settle(await harness.attach(reservation_of(second)), Completed(b"1"))


async def test_a_token_of_one_attempt_opens_no_other(launching, queue_up, harness, platform):
    await queue_up(2)
    await launching.launch_once()
    one, other = map(reservation_of, platform.asked)
    with pytest.raises(LeaseLost):
        await harness.attach(type(one)(one.task_id, one.attempt, None, other.token))


async def test_a_crash_before_the_launch_is_taken_up_by_another_launcher(engine, queue_up, harness, platform, clock):
    [task] = await queue_up()
    [found] = await verbs.find_launchable(engine.database)
    holder = await verbs.take_slot(engine.database, found, slots=2)
    assert await verbs.reserve_launch(engine.database, found, holder, launch_seconds=120) is not None
    other = Launching(engine, Fixed({"test": profile(platform)}))
    assert await other.launch_once() == 0
    await clock.advance(seconds=61)
    assert await other.launch_once() == 1
    await harness.settle(await harness.attach(reservation_of(platform.asked[0])), Completed(b"1"))
    assert (await harness.task(task)).attempt == 1


async def test_a_crash_before_launch_orphan_is_found_from_the_database_alone(engine, queue_up, harness, clock, slots):
    [task] = await queue_up()
    [found] = await verbs.find_launchable(engine.database)
    holder = await verbs.take_slot(engine.database, found, slots=2)
    await verbs.reserve_launch(engine.database, found, holder, launch_seconds=120)
    await clock.advance(seconds=120)
    assert await harness.reap_once() == 1
    assert [one.state for one in await harness.attempts(task)] == [AttemptState.LOST]
    assert await slots() == []


async def test_a_dead_launchers_slot_comes_back(engine, queue_up, slots, clock):
    await queue_up()
    [found] = await verbs.find_launchable(engine.database)
    assert await verbs.take_slot(engine.database, found, slots=1) is not None
    assert await verbs.take_slot(engine.database, found, slots=1) is None
    await clock.advance(seconds=verbs.SLOT_SECONDS)
    assert await slots() == []
    assert await verbs.take_slot(engine.database, found, slots=1) is not None


async def test_a_reservation_without_its_slot_is_not_made(engine, queue_up, clock):
    await queue_up()
    [found] = await verbs.find_launchable(engine.database)
    holder = await verbs.take_slot(engine.database, found, slots=1)
    await clock.advance(seconds=verbs.SLOT_SECONDS)
    assert await verbs.reserve_launch(engine.database, found, holder, launch_seconds=120) is None


async def test_a_running_attempt_keeps_its_slot_whatever_happens_to_launchers(
    launching, queue_up, harness, platform, clock, slots
):
    [task] = await queue_up()
    await launching.launch_once()
    lease = await harness.attach(reservation_of(platform.asked[0]))
    for _ in range(40):
        await clock.advance(seconds=5)
        await harness.heartbeat(lease)
    assert await slots() == [task]
    await harness.settle(lease, Completed(b"1"))
    assert await slots() == []


async def test_a_worker_that_stopped_without_calling_back_is_lost_before_its_time(
    launching, queue_up, harness, platform, clock
):
    [task] = await queue_up()
    await launching.launch_once()
    platform.seen = {platform.asked[0].name: LaunchStatus(state=LaunchState.STOPPED, detail="exit code 137")}
    await clock.advance(seconds=11)
    await launching.supervise_once()
    [attempt] = await harness.attempts(task)
    assert attempt.state is AttemptState.LOST and "exit code 137" in attempt.message
    assert (await harness.task(task)).state is TaskState.QUEUED


async def test_a_platform_that_says_stopped_does_not_end_a_worker_that_beats(
    launching, queue_up, harness, platform, clock
):
    await queue_up()
    await launching.launch_once()
    lease = await harness.attach(reservation_of(platform.asked[0]))
    platform.seen = {platform.asked[0].name: LaunchStatus(state=LaunchState.STOPPED, detail="a lie")}
    await clock.advance(seconds=5)
    await launching.supervise_once()
    assert (await harness.heartbeat(lease)).lost == set()
    await harness.settle(lease, Completed(b"1"))


@pytest.mark.parametrize(
    ("state", "seconds", "is_lost"),
    [
        (LaunchState.MISSING, 11, False),
        (LaunchState.MISSING, 41, True),
        (LaunchState.UNKNOWN, 100, False),
        (LaunchState.RUNNING, 100, False),
    ],
)
async def test_only_a_platform_that_is_sure_loses_a_worker(
    launching, queue_up, harness, platform, clock, state, seconds, is_lost
):
    [task] = await queue_up()
    await launching.launch_once()
    platform.seen = {platform.asked[0].name: LaunchStatus(state=state)}
    await clock.advance(seconds=seconds)
    await launching.supervise_once()
    [attempt] = await harness.attempts(task)
    assert (attempt.state is AttemptState.LOST) is is_lost


async def test_a_canceled_reservation_is_stopped_on_the_platform(launching, queue_up, harness, platform, slots):
    [task] = await queue_up()
    await launching.launch_once()
    assert await harness.cancel(task) == "canceled"
    assert await launching.supervise_once() == 1
    assert platform.stopped == [platform.asked[0].name] and await slots() == []


async def test_a_canceled_worker_is_stopped_on_the_platform(launching, queue_up, harness, platform, clock):
    [task] = await queue_up()
    await launching.launch_once()
    await harness.attach(reservation_of(platform.asked[0]))
    await harness.cancel(task, grace_seconds=2)
    await clock.advance(seconds=3)
    await harness.reap_once()
    await launching.supervise_once()
    assert platform.stopped == [platform.asked[0].name]


async def test_a_worker_that_called_back_is_left_to_end_by_itself(launching, queue_up, harness, platform, engine):
    await queue_up()
    await launching.launch_once()
    await harness.settle(await harness.attach(reservation_of(platform.asked[0])), Completed(b"1"))
    assert await launching.supervise_once() == 1
    assert platform.stopped == []
    assert await engine.database.fetchval("select count(*) from holdfast.launch") == 0


async def test_a_lost_worker_is_stopped_so_that_it_does_not_run_on(launching, queue_up, harness, platform, clock):
    await queue_up()
    await launching.launch_once()
    lease = await harness.attach(reservation_of(platform.asked[0]))
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    await launching.supervise_once()
    assert platform.stopped == [platform.asked[0].name]


async def test_a_platform_that_cannot_be_asked_to_stop_is_asked_again(engine, launching, queue_up, harness, platform):
    [task] = await queue_up()
    await launching.launch_once()
    await harness.cancel(task)
    stop, platform.stop = platform.stop, None
    assert await launching.supervise_once() == 0
    platform.stop = stop
    assert await launching.supervise_once() == 0  # it is left alone for a while
    assert await Launching(engine, Fixed({"test": profile(platform)})).supervise_once() == 1


async def test_the_token_is_kept_as_a_hash_and_deleted_at_the_call_back(launching, queue_up, harness, platform, engine):
    await queue_up()
    await launching.launch_once()
    [order] = platform.asked
    kept = await engine.database.fetchval("select token_hashes from holdfast.launch")
    assert kept == [token_hash(order.token)] and order.token.encode() not in kept
    await harness.attach(reservation_of(order))
    assert await engine.database.fetchval("select token_hashes from holdfast.launch") == []


async def test_a_token_lives_two_hours(engine, launching, queue_up, platform, clock):
    """Also that of a launch that counts as failed: its worker may have come up all the same."""
    await queue_up()
    platform.faults = [LOSE_ANSWER]
    await launching.launch_once()
    for seconds, kept in ((2 * 60 * 60 - 60, 1), (60, 0)):
        await clock.advance(seconds=seconds)
        await launching.supervise_once()
        assert await engine.database.fetchval("select cardinality(token_hashes) from holdfast.launch") == kept


def test_a_launched_action_is_retried_once_unless_it_or_the_settings_say_otherwise():
    app = App("shop")

    @app.action(launcher="ecs")
    def once() -> None: ...

    @app.action(launcher="ecs", max_retries=4)
    def often() -> None: ...

    def retries(**environ: str) -> tuple[int, int]:
        defaults = Engine("postgresql://nowhere", Settings.load(environ)).policy_defaults
        return once.policy(defaults).max_retries, often.policy(defaults).max_retries

    assert retries() == (1, 4)
    assert retries(MAX_RETRIES="3") == (3, 4), "the usual number counts as set too"
    assert retries(MAX_RETRIES="0") == (0, 4) and retries(HOLDFAST_MAX_RETRIES="2") == (2, 4)


async def test_no_attempt_beyond_the_budget_is_launched(launching, queue_up, harness, platform, clock):
    [task] = await queue_up(max_retries=1)
    for _ in range(4):
        await launching.launch_once()
        if len(platform.asked) > len(platform.stopped):
            order = platform.asked[-1]
            platform.stopped.append(order.name)
            await harness.settle(await harness.attach(reservation_of(order)), Failed(a_failure()))
        await clock.advance(seconds=10)
        await harness.reconcile_once()
    assert [order.attempt for order in platform.asked] == [1, 2]
    assert (await harness.task(task)).state is TaskState.FAILED


@pytest.mark.parametrize(
    ("said", "means"),
    [(1, 1), (7, 7), (0, 1), (-3, 1), (2.0, 1), (2.5, 1), ("2", 1), (True, 1), (None, 1), ([2], 1), ({}, 1)],
)
def test_a_malformed_attempt_means_the_first(said, means):
    assert attempt_of(said) == means
