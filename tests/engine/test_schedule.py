"""Schedules fire: once per slot, with the slot's time, by policy, whatever the clock does."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest
from tests.core.flows import a_flow
from tests.engine.slots import HOUR, fates, finish, frozen, until_slot  # noqa: F401 - one is for all
from tests.engine.test_observe import until_settled

from holdfast.codec import json_codec
from holdfast.core.schedules.schedule import Overlap
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.maintenance.retention import retain_once
from holdfast.engine.queries.events import events_after
from holdfast.engine.schedules.commands import ScheduleDraft, declare_schedule
from holdfast.engine.schedules.fire import schedule_once
from holdfast.store.database import LockTimeouts
from holdfast.store.statements import sql
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import ACTION, a_failure


async def test_a_slot_fires_when_its_time_has_come_and_not_before(harness, clock):
    await harness.schedules.keep(input={"order_id": 7})
    await until_slot(harness, clock, late_seconds=-1)
    assert await harness.schedule_once() == 0
    await clock.advance(seconds=1)
    assert await harness.schedule_once() == 1
    assert await harness.schedule_once() == 0
    (slot,) = await harness.schedules.slots()
    task = await harness.task(slot.task_id)
    assert json_codec.decode(task.input) == {"order_id": 7}
    assert (slot.state, slot.cause, slot.outcome) == ("fired", "on_time", "queued")


async def test_a_slot_that_waits_goes_also_after_the_timing_changed(harness, clock, engine):
    await harness.schedules.keep(overlap="queue")
    for _ in range(2):
        await until_slot(harness, clock)
        await harness.schedule_once()
    assert [slot.state for slot in await harness.schedules.slots()] == ["fired", "waiting"]
    rare = ScheduleDraft(name="hourly", origin="test", target=ACTION, overlap=Overlap.QUEUE, cron="0 0 1 1 *")
    assert await declare_schedule(engine.database, 1, rare)
    await finish(harness)
    await clock.advance(seconds=1)
    assert await harness.schedule_once() == 1
    assert [slot.state for slot in await harness.schedules.slots()] == ["fired", "fired"]


async def test_a_task_is_told_for_when_it_was_scheduled(harness, clock):
    await harness.schedules.keep(timezone="Europe/Berlin", wants_time=True, tags=("nightly",))
    await until_slot(harness, clock, late_seconds=20)
    await harness.schedule_once()
    (slot,) = await harness.schedules.slots()
    lease = await harness.claim_one()
    told = json_codec.decode(lease.claimed.input)["scheduled_for"]
    assert slot.slot.astimezone((await harness.schedules.view()).upcoming[0].tzinfo).isoformat() == told
    assert list(lease.claimed.tags) == ["nightly", "schedule:hourly", f"scheduled_for:{told}"]


async def test_a_flow_starts_in_its_newest_version(harness, clock, engine):
    await harness.schedules.keep("flows", flow=a_flow("a>b"))
    await harness.runs.snapshot(_version(a_flow("a>b b>c"), 2))
    await until_slot(harness, clock, name="flows")
    assert await harness.schedule_once() == 1
    (slot,) = await harness.schedules.slots("flows")
    assert (slot.task_id, slot.outcome) == (None, "running")
    assert await harness.runs.nodes(slot.run_id) == {"a": "queued", "b": "blocked", "c": "blocked"}
    for _ in range(3):
        await finish(harness)
    assert (await harness.schedules.slots("flows"))[0].outcome == "completed"


async def test_a_limit_on_nodes_holds_for_every_run(harness, clock):
    await harness.schedules.keep("flows", flow=a_flow(alone=["a", "b", "c"]), max_active=2)
    await until_slot(harness, clock, name="flows")
    await harness.schedule_once()
    (slot,) = await harness.schedules.slots("flows")
    assert await harness.runs.nodes(slot.run_id) == {"a": "queued", "b": "queued", "c": "blocked"}
    assert (await harness.schedules.view("flows")).max_active == 2


def _version(flow, version):
    from dataclasses import replace

    return replace(flow, version=version)


@pytest.mark.slow(
    "it moves many rows or waits for real time; test_overlap_queue_starts_the_next_when_the_previous_is_over is fast"
)
async def test_schedulers_that_run_at_once_fire_every_slot_once(harness, clock, engine):
    for number in range(5):
        await harness.schedules.keep(f"s{number}", overlap="allow", missed="all")
    others = [EngineHarness(Engine(engine.database.url, engine.settings)) for _ in range(4)]
    for other in others:
        await other.engine.__aenter__()
    try:
        for _ in range(6):
            await until_slot(harness, clock, name="s0")
            await asyncio.gather(*(each.schedule_once() for each in [harness, *others]))
            await harness.schedule_once()
    finally:
        for other in others:
            await other.engine.__aexit__(None, None, None)
    for number in range(5):
        slots = await harness.schedules.slots(f"s{number}")
        assert [slot.state for slot in slots] == ["fired"] * 6
        assert len({slot.slot for slot in slots}) == len({slot.task_id for slot in slots}) == 6
    assert await engine.database.fetchval("select count(*) from holdfast.live") == 30


async def test_a_scheduler_does_not_wait_for_another(harness, clock, engine):
    await harness.schedules.keep()
    await until_slot(harness, clock)
    async with engine.database.transaction() as held:
        await held.fetch("select from holdfast.schedule for update")
        assert await asyncio.wait_for(harness.schedule_once(), 5) == 0
    assert await harness.schedule_once() == 1


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", [("missed", "no_scheduler")] * 3),
        ("latest", [("missed", "no_scheduler")] * 2 + [("fired", "late")]),
        ("all", [("fired", "late")] * 3),
    ],
)
async def test_slots_of_a_downtime(harness, clock, missed, expected):
    await harness.schedules.keep(missed=missed, overlap="allow")
    await until_slot(harness, clock, late_seconds=2.5 * HOUR)
    await harness.schedule_once()
    assert await fates(harness) == expected
    view = await harness.schedules.view()
    assert view.next_at > view.at
    missing = sum(state == "missed" for state, _ in expected)
    assert (f"{missing} slots missed while no scheduler ran" in view.why) == bool(missing)


async def test_a_year_without_a_scheduler_is_counted_and_does_not_flood(harness, clock):
    await harness.schedules.keep("minutes", every_seconds=60.0, missed="all", overlap="allow")
    await clock.advance("365d")
    assert await harness.schedule_once() == 100
    together, *newest = await harness.schedules.slots("minutes")
    assert (together.state, together.slots + len(newest)) == ("missed", 365 * 24 * 60)
    assert [slot.state for slot in newest] == ["fired"] * 100


@pytest.mark.slow(
    "it moves many rows or waits for real time; test_overlap_queue_starts_the_next_when_the_previous_is_over is fast"
)
async def test_a_long_cron_downtime_takes_several_looks_and_ends(harness, clock):
    await harness.schedules.keep("minutes", cron="* * * * *")
    await clock.advance("30d")
    for _ in range(4):
        await harness.schedule_once()
    slots = await harness.schedules.slots("minutes")
    assert sum(slot.slots for slot in slots) == 30 * 24 * 60
    assert slots[-1].state == "fired"


async def test_overlap_skip(harness, clock):
    await harness.schedules.keep(overlap="skip")
    for _ in range(2):
        await until_slot(harness, clock)
        await harness.schedule_once()
    assert await fates(harness) == [("fired", "on_time"), ("skipped", "overlap")]
    first, second = await harness.schedules.slots()
    assert second.reason == f"The previous firing (task {first.task_id}) is not over."
    assert "1 slot skipped because the previous firing still ran" in (await harness.schedules.view()).why
    await finish(harness)
    await until_slot(harness, clock)
    assert await harness.schedule_once() == 1


async def test_a_retry_that_waits_counts_as_not_over_and_a_final_failure_as_over(harness, clock):
    await harness.schedules.keep()
    await until_slot(harness, clock)
    await harness.schedule_once()
    await harness.settle(await harness.claim_one(), Failed(a_failure("validation: no")))
    await until_slot(harness, clock)
    assert await harness.schedule_once() == 1
    assert (await harness.schedules.slots())[0].outcome == "failed"


async def test_overlap_queue_starts_the_next_when_the_previous_is_over(harness, clock):
    await harness.schedules.keep(overlap="queue", max_waiting=2)
    for _ in range(4):
        await until_slot(harness, clock)
        await harness.schedule_once()
    waits = ("waiting", "overlap")
    assert await fates(harness) == [("fired", "on_time"), waits, waits, ("skipped", "waiting_full")]
    for _ in range(3):
        await clock.advance(seconds=2)
        assert len(await harness.claim(10, worker="look")) == 1
        await clock.advance(seconds=2)
        assert await harness.schedule_once() == 0
        await _complete_running(harness)
        await clock.advance(seconds=2)
        await harness.schedule_once()
    assert await fates(harness) == [
        ("fired", "on_time"),
        ("fired", "waited"),
        ("fired", "waited"),
        ("skipped", "waiting_full"),
    ]


async def _complete_running(harness):
    await harness.engine.database.fetch("update holdfast.worker set state = 'gone', ended_at = holdfast.instant()")
    await harness.reap_once()
    harness._claimers.clear()
    await finish(harness)


async def test_overlap_replace_ends_what_has_not_started_and_fires_at_once(harness, clock):
    await harness.schedules.keep(overlap="replace")
    for _ in range(2):
        await until_slot(harness, clock)
        assert await harness.schedule_once() == 1
    first, second = await harness.schedules.slots()
    assert (first.outcome, second.outcome) == ("canceled", "queued")
    assert (second.state, second.cause) == ("fired", "waited")


async def test_overlap_replace_asks_what_runs_to_stop_and_waits_until_it_did(harness, clock):
    await harness.schedules.keep(overlap="replace")
    await until_slot(harness, clock)
    await harness.schedule_once()
    lease = await harness.claim_one()
    for _ in range(2):
        await until_slot(harness, clock)
        assert await harness.schedule_once() == 0
        assert (await harness.task(lease.task_id)).cancel_at is not None
    assert [state for state, _ in await fates(harness)] == ["fired", "skipped", "waiting"]
    await harness.reap_once()
    await clock.advance(seconds=2)
    assert await harness.schedule_once() == 1
    assert [slot.outcome for slot in await harness.schedules.slots()] == ["canceled", None, "queued"]


async def test_overlap_replace_cancels_a_run(harness, clock):
    await harness.schedules.keep("flows", flow=a_flow("a>b"), overlap="replace")
    for _ in range(2):
        await until_slot(harness, clock, name="flows")
        assert await harness.schedule_once() == 1
    assert [slot.outcome for slot in await harness.schedules.slots("flows")] == ["canceled", "running"]
    for _ in range(2):
        await finish(harness)


async def test_a_clock_that_goes_back_fires_nothing_twice_and_loses_nothing(harness, clock):
    await harness.schedules.keep(overlap="allow")
    for _ in range(3):
        await until_slot(harness, clock)
        await harness.schedule_once()
    await clock.step(-2.5 * HOUR)
    assert await harness.schedule_once() == 0
    for _ in range(5):
        await clock.advance("30m")
        assert await harness.schedule_once() == 0
    await until_slot(harness, clock)
    assert await harness.schedule_once() == 1
    slots = await harness.schedules.slots()
    gaps = {later.slot - earlier.slot for earlier, later in itertools.pairwise(slots)}
    assert gaps == {timedelta(hours=1)} and len(slots) == 4


async def test_a_clock_that_jumped_ahead_for_a_moment_does_not_silence_a_schedule(harness, clock):
    await harness.schedules.keep(overlap="allow")
    await until_slot(harness, clock)
    await harness.schedule_once()
    await clock.advance("400d")
    assert await harness.schedule_once() == 1
    await clock.step(-400 * 24 * HOUR)
    await harness.schedule_once()
    for _ in range(3):
        await clock.advance("1h")
        assert await harness.schedule_once() == 1
    assert [state for state, _ in await fates(harness)] == ["fired"] * 5


async def test_what_retention_forgot_does_not_fire_again_when_the_clock_goes_back(harness, clock, engine):
    await harness.schedules.keep(overlap="allow", missed="all")
    await until_slot(harness, clock, late_seconds=48 * HOUR)
    assert await harness.schedule_once() == 49
    await finish(harness)
    await until_slot(harness, clock)
    await harness.schedule_once()
    await retain_once(engine.database, days=0.5)
    assert len(await harness.schedules.slots()) == 12
    await clock.step(-40 * HOUR)
    for _ in range(30):
        await clock.advance("1h")
        assert await harness.schedule_once() == 0


async def test_history_is_bounded_and_keeps_what_is_not_settled(harness, clock, engine):
    await harness.schedules.keep(overlap="skip")
    await until_slot(harness, clock)
    await harness.schedule_once()
    for _ in range(30):
        await until_slot(harness, clock)
        await harness.schedule_once()
    await clock.advance("9d")
    await retain_once(engine.database, days=1)
    slots = await harness.schedules.slots()
    assert [slot.state for slot in slots] == ["fired"] + ["skipped"] * 10


async def test_a_schedule_that_cannot_fire_says_why_and_holds_up_no_other(harness, clock, engine):
    await harness.schedules.keep("broken", action="shop.gone")
    await harness.schedules.keep("sound")
    await engine.database.fetch("delete from holdfast.action where name = 'shop.gone'")
    await until_slot(harness, clock, name="sound")
    assert await harness.schedule_once() == 1
    view = await harness.schedules.view("broken")
    assert "No worker ever declared the action 'shop.gone'" in view.why
    assert await harness.schedules.slots("broken") == []
    await harness.schedules.keep("other", action="shop.gone")
    await clock.advance(seconds=61)
    assert await harness.schedule_once() == 1
    assert (await harness.schedules.view("broken")).trouble is None


async def test_events_tell_what_became_of_slots(harness, clock, engine):
    await harness.schedules.keep(missed="latest")
    await until_slot(harness, clock, late_seconds=HOUR)
    await harness.schedule_once()
    await until_slot(harness, clock)
    await harness.schedule_once()
    rows = await engine.database.fetch(
        "select kind, detail ->> 'schedule', detail ->> 'cause', (detail ->> 'slots')::int"
        " from holdfast.event where kind like 'schedule.%' order by seq"
    )
    assert [tuple(row) for row in rows if row["kind"] != "schedule.created"] == [
        ("schedule.fired", "hourly", "on_time", 1),
        ("schedule.missed", "hourly", "no_scheduler", 1),
        ("schedule.skipped", "hourly", "overlap", 1),
    ]
    await until_settled(harness)
    (fired,) = [one for one in (await events_after(engine.database, 1)).events if one.kind == "schedule.fired"]
    assert fired.task_id == (await harness.schedules.slots())[1].task_id


async def test_the_loop_comes_back_when_the_next_slot_does(harness, clock, engine):
    loops = Loops(engine)
    assert await loops.schedule() is None
    await harness.schedules.keep()
    await until_slot(harness, clock, late_seconds=-0.25)
    assert await loops.schedule() == pytest.approx(0.25)
    await clock.advance(seconds=0.25)
    assert await loops.schedule() == pytest.approx(HOUR)
    assert await fates(harness) == [("fired", "on_time")]


PUT_OFF = "select look_at > holdfast.instant() from holdfast.schedule where name = $1"


async def test_a_schedule_that_cannot_be_read_ends_no_other_and_is_put_off(harness, clock, engine):
    await harness.schedules.keep("broken")
    await harness.schedules.keep("sound")
    await engine.database.fetch(r"update holdfast.schedule set input = '\x7b' where name = 'broken'")
    await until_slot(harness, clock, name="sound")
    await engine.database.fetch("update holdfast.schedule set look_at = look_at - interval '1s' where name = 'broken'")
    assert await harness.schedule_once() == 1
    assert "truncated" in await engine.database.fetchval("select trouble from holdfast.schedule where name = 'broken'")
    assert await engine.database.fetchval(PUT_OFF, "broken")


async def test_a_run_that_is_held_ends_no_pass_and_the_schedule_that_waits_for_it_is_put_off(harness, clock, engine):
    await harness.schedules.keep("flows", flow=a_flow("a>b"), overlap="replace")
    await harness.schedules.keep("sound", overlap="allow")
    await until_slot(harness, clock, name="sound")
    assert await harness.schedule_once() == 2
    run_id = await engine.database.fetchval("select run_id from holdfast.run")
    await until_slot(harness, clock, name="sound")
    await engine.database.fetch("update holdfast.schedule set look_at = look_at - interval '1s' where name = 'flows'")
    impatient = engine.database.apart(patience=LockTimeouts(lock_seconds=0.1, idle_seconds=60))
    async with engine.database.transaction() as holder:
        await holder.fetch(sql("lock_runs"), [run_id])
        done = await schedule_once(impatient, engine.catalog, grace_seconds=1.0)
    await impatient.close()
    assert (done.fired, await engine.database.fetchval(PUT_OFF, "flows")) == (1, True)
    assert (await harness.schedules.view("flows")).trouble
    await clock.advance("2m")
    await harness.schedule_once()
    assert (await harness.schedules.view("flows")).trouble is None
