"""Schedules as people handle them: paused, fired by hand, deleted, refused."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow
from tests.engine.slots import HOUR, fates, finish, frozen, until_slot  # noqa: F401 - one is for all

from holdfast.errors import Conflict, Invalid, NotFound


async def test_a_pause_skips_slots_with_its_reason_and_resuming_catches_up_with_nothing(dispatcher, clock):
    await dispatcher.schedules.keep(missed="all", overlap="allow")
    assert await dispatcher.schedules.pause(actor="ann", reason="a migration")
    assert not await dispatcher.schedules.pause(actor="bob", reason="another")
    await until_slot(dispatcher, clock)
    assert await dispatcher.schedule_once() == 0
    await until_slot(dispatcher, clock, late_seconds=HOUR)
    assert await dispatcher.schedules.resume(actor="ann")
    assert await dispatcher.schedule_once() == 0
    assert [(slot.cause, slot.reason) for slot in await dispatcher.schedules.slots()] == [
        ("paused", "Paused by ann: a migration.")
    ] * 3
    assert not await dispatcher.schedules.resume()
    await until_slot(dispatcher, clock)
    assert await dispatcher.schedule_once() == 1


async def test_what_waits_stays_where_it_is_during_a_pause(dispatcher, clock):
    await dispatcher.schedules.keep(overlap="queue")
    for _ in range(2):
        await until_slot(dispatcher, clock)
        await dispatcher.schedule_once()
    await dispatcher.schedules.pause()
    await finish(dispatcher)
    await clock.advance(seconds=5)
    assert await dispatcher.schedule_once() == 0
    await dispatcher.schedules.resume()
    assert await dispatcher.schedule_once() == 1


async def test_firing_by_hand_is_recorded_as_such_and_works_during_a_pause(dispatcher, clock):
    await dispatcher.schedules.keep()
    await dispatcher.schedules.pause()
    fired = await dispatcher.schedules.fire(actor="ann", reason="to see it")
    (slot,) = await dispatcher.schedules.slots()
    assert (fired.state, fired.task_id) == ("fired", slot.task_id)
    assert (slot.cause, slot.by, slot.reason) == ("by_hand", "ann", "to see it")
    with pytest.raises(Conflict) as refused:
        await dispatcher.schedules.fire()
    assert refused.value.code == "schedule_overlap" and fired.task_id in refused.value.detail
    assert len(await dispatcher.schedules.slots()) == 1


async def test_firing_by_hand_waits_or_replaces_as_the_policy_says(dispatcher, clock):
    for overlap, first_outcome in (("queue", "queued"), ("replace", "canceled")):
        await dispatcher.schedules.keep(overlap, overlap=overlap)
        await dispatcher.schedules.fire(overlap)
        await clock.advance(seconds=1)
        assert (await dispatcher.schedules.fire(overlap)).state == "waiting"
        first, second = await dispatcher.schedules.slots(overlap)
        assert (first.outcome, second.state) == (first_outcome, "waiting")
        await dispatcher.schedule_once()
        assert (await dispatcher.schedules.slots(overlap))[1].state == ("waiting" if overlap == "queue" else "fired")


async def test_a_deleted_schedule_is_gone_and_what_it_fired_stays(dispatcher, clock):
    await dispatcher.schedules.keep()
    await until_slot(dispatcher, clock)
    await dispatcher.schedule_once()
    (slot,) = await dispatcher.schedules.slots()
    await dispatcher.schedules.delete()
    assert (await dispatcher.task(slot.task_id)).state == "queued"
    for verb in (dispatcher.schedules.view, dispatcher.schedules.delete, dispatcher.schedules.fire):
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
async def test_bad_schedules_are_refused_before_anything_is_stored(dispatcher, engine, fields, code):
    with pytest.raises(Invalid) as refused:
        await dispatcher.schedules.keep(**fields)
    assert refused.value.code == code
    assert await engine.database.fetchval("select count(*) from holdfast.schedule") == 0


async def test_a_second_schedule_of_a_name_is_refused(dispatcher):
    await dispatcher.schedules.keep()
    with pytest.raises(Conflict) as refused:
        await dispatcher.schedules.keep()
    assert refused.value.code == "schedule_exists"
