"""Schedules as people handle them: paused, fired by hand, deleted, refused."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow
from tests.engine.slots import HOUR, fates, finish, frozen, until_slot  # noqa: F401 - one is for all

from holdfast.errors import Conflict, Invalid, NotFound


async def test_a_pause_skips_slots_with_its_reason_and_resuming_catches_up_with_nothing(harness, clock):
    await harness.schedules.keep(missed="all", overlap="allow")
    assert await harness.schedules.pause(actor="ann", reason="a migration")
    assert not await harness.schedules.pause(actor="bob", reason="another")
    await until_slot(harness, clock)
    assert await harness.schedule_once() == 0
    await until_slot(harness, clock, late_seconds=HOUR)
    assert await harness.schedules.resume(actor="ann")
    assert await harness.schedule_once() == 0
    assert [(slot.cause, slot.reason) for slot in await harness.schedules.slots()] == [
        ("paused", "Paused by ann: a migration.")
    ] * 3
    assert not await harness.schedules.resume()
    await until_slot(harness, clock)
    assert await harness.schedule_once() == 1


async def test_what_waits_stays_where_it_is_during_a_pause(harness, clock):
    await harness.schedules.keep(overlap="queue")
    for _ in range(2):
        await until_slot(harness, clock)
        await harness.schedule_once()
    await harness.schedules.pause()
    await finish(harness)
    await clock.advance(seconds=5)
    assert await harness.schedule_once() == 0
    await harness.schedules.resume()
    assert await harness.schedule_once() == 1


async def test_firing_by_hand_is_recorded_as_such_and_works_during_a_pause(harness, clock):
    await harness.schedules.keep()
    await harness.schedules.pause()
    fired = await harness.schedules.fire(actor="ann", reason="to see it")
    (slot,) = await harness.schedules.slots()
    assert (fired.state, fired.task_id) == ("fired", slot.task_id)
    assert (slot.cause, slot.by, slot.reason) == ("by_hand", "ann", "to see it")
    with pytest.raises(Conflict) as refused:
        await harness.schedules.fire()
    assert refused.value.code == "schedule_overlap" and fired.task_id in refused.value.detail
    assert len(await harness.schedules.slots()) == 1


async def test_firing_by_hand_waits_or_replaces_as_the_policy_says(harness, clock):
    for overlap, first_outcome in (("queue", "queued"), ("replace", "canceled")):
        await harness.schedules.keep(overlap, overlap=overlap)
        await harness.schedules.fire(overlap)
        await clock.advance(seconds=1)
        assert (await harness.schedules.fire(overlap)).state == "waiting"
        first, second = await harness.schedules.slots(overlap)
        assert (first.outcome, second.state) == (first_outcome, "waiting")
        await harness.schedule_once()
        assert (await harness.schedules.slots(overlap))[1].state == ("waiting" if overlap == "queue" else "fired")


async def test_a_deleted_schedule_is_gone_and_what_it_fired_stays(harness, clock):
    await harness.schedules.keep()
    await until_slot(harness, clock)
    await harness.schedule_once()
    (slot,) = await harness.schedules.slots()
    await harness.schedules.delete()
    assert (await harness.task(slot.task_id)).state == "queued"
    for verb in (harness.schedules.view, harness.schedules.delete, harness.schedules.fire):
        with pytest.raises(NotFound) as missing:
            await verb()
        assert missing.value.code == "schedule_not_found"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cron": "0 0 30 2 *"}, "invalid_cron"),
        ({"cron": None, "every_seconds": 0.1}, "invalid_interval"),
        ({"cron": "0 6 * * *", "every_seconds": 60.0}, "invalid_schedule"),
        ({"timezone": "Mars/Olympus"}, "invalid_timezone"),
        ({"name": "x" * 56}, "invalid_name"),
        ({"name": "two words"}, "invalid_name"),
        ({"max_waiting": 0}, "invalid_schedule"),
        ({"max_waiting": 101}, "invalid_schedule"),
        ({"priority": 10}, "invalid_priority"),
        ({"max_active": 0, "flow": a_flow("a>b")}, "invalid_schedule"),
        ({"max_active": 2}, "invalid_schedule"),
        ({"queue": "no such name!"}, "invalid_name"),
        ({"tags": tuple(f"t{number}" for number in range(19))}, "invalid_tag"),
    ],
)
async def test_bad_schedules_are_refused_before_anything_is_stored(harness, engine, fields, code):
    with pytest.raises(Invalid) as refused:
        await harness.schedules.keep(**fields)
    assert refused.value.code == code
    assert await engine.database.fetchval("select count(*) from holdfast.schedule") == 0


async def test_a_second_schedule_of_a_name_is_refused(harness):
    await harness.schedules.keep()
    with pytest.raises(Conflict) as refused:
        await harness.schedules.keep()
    assert refused.value.code == "schedule_exists"
