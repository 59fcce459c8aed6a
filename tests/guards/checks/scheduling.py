"""What guards a schedule: its lock, its revision, who keeps it, and that a slot is decided once."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from tests.core.flows import a_flow
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, refuses

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.maintenance.retention import retain_once
from holdfast.engine.schedules import commands as schedule_commands
from holdfast.engine.schedules import fire as passes
from holdfast.engine.schedules.commands import ScheduleDraft, declare_schedule, find_schedule
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.statements import sql

NAME = "hourly"
HOUR = 3600.0


async def _until_slot(stage: Stage) -> None:
    view = await stage.harness.schedules.view()
    await stage.clock.advance(seconds=(view.next_at - view.at).total_seconds() + 1)


async def _next_slot(stage: Stage) -> int:
    await _until_slot(stage)
    return await stage.harness.schedule_once()


async def _states(stage: Stage) -> list[str]:
    return [slot.state for slot in await stage.harness.schedules.slots()]


async def _finish(stage: Stage) -> None:
    while leases := await stage.harness.claim(100):
        for lease in leases:
            await stage.harness.settle(lease, Completed(b"null"))


async def _row(stage: Stage) -> Any:
    return await find_schedule(stage.engine.database, DEFAULT_TENANT_ID, NAME)


def _draft(**fields: Any) -> ScheduleDraft:
    given = {"name": NAME, "origin": "test", "target": "shop.charge", "cron": "0 * * * *"} | fields
    return ScheduleDraft(**given)


@check
async def a_name_stands_for_one_schedule(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    with refuses(Conflict):
        await stage.harness.schedules.keep()


@check
async def another_tenants_schedule_is_left_alone(stage: Stage) -> None:
    await another_tenant(stage)
    schedules, engine = stage.harness.schedules, stage.engine
    await schedules.keep()
    mine = await schedules.view()
    theirs = (*(OTHER_TENANT_ID, NAME), "eve", "")
    for verb in ("pause_schedule", "resume_schedule", "delete_schedule"):
        assert not await engine.database.fetchval(sql(verb), *theirs)
        await schedules.pause()
    columns = await schedule_commands._columns(
        engine.database, OTHER_TENANT_ID, _draft(missed=schedule_commands.Missed.ALL)
    )
    assert await engine.database.fetchval(sql("change_schedule"), *columns) is None
    assert (await schedules.view()).missed == mine.missed
    with refuses(NotFound):
        await schedule_commands.fire(engine, OTHER_TENANT_ID, NAME, actor="eve", reason="")


@check
async def only_its_keeper_changes_a_schedule(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    assert not await declare_schedule(
        stage.engine.database, DEFAULT_TENANT_ID, _draft(origin="app:shop", cron="5 5 * * *")
    )
    assert (await stage.harness.schedules.view()).cron == "0 * * * *"


@check
async def a_second_pause_of_a_schedule_keeps_the_first(stage: Stage) -> None:
    schedules = stage.harness.schedules
    await schedules.keep()
    resume = (sql("resume_schedule"), DEFAULT_TENANT_ID, NAME, "ann", "")
    assert not await stage.engine.database.fetchval(*resume)
    assert await schedules.pause(actor="ann") and not await schedules.pause(actor="bob")
    assert (await schedules.view()).paused_by == "ann"


@check
async def schedulers_do_not_wait_for_one_another(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    await _until_slot(stage)
    async with stage.engine.database.transaction() as held:
        await held.fetch("select from holdfast.schedule for no key update")
        other = asyncio.ensure_future(stage.harness.schedule_once())
        await stage.waits(other)
        is_done = other.done()
    await other
    assert is_done


@check
async def nothing_fires_by_rules_that_changed_meanwhile(stage: Stage) -> None:
    schedules, engine = stage.harness.schedules, stage.engine
    await schedules.keep()
    await _until_slot(stage)
    row = await _row(stage)
    target = await passes.find_target(engine.database, engine.catalog, row)
    await declare_schedule(engine.database, DEFAULT_TENANT_ID, _draft(input=b'{"new": true}'))
    assert (await passes._settle(engine.database, engine.catalog, row, target)).fired == ()
    trouble = (sql("record_schedule_error"), row.schedule_id, row.revision, "an old worry", 60.0)
    assert await engine.database.fetchval(*trouble) is None
    async with engine.database.transaction() as session:
        with refuses(Conflict):
            await schedule_commands._hold(session, row)


@check
async def a_hand_and_a_scheduler_see_each_other(stage: Stage) -> None:
    """Somebody fires by hand while a scheduler is about to commit: whoever comes second finds the first."""
    schedules, engine = stage.harness.schedules, stage.engine
    await schedules.keep()
    await _until_slot(stage)
    row = await _row(stage)
    target = await passes.find_target(engine.database, engine.catalog, row)
    async with engine.database.transaction() as held:
        await held.fetch("select from holdfast.schedule for no key update")
        by_hand = asyncio.ensure_future(schedules.fire())
        await stage.waits(by_hand)
        await passes.settle_slots(held, engine.catalog, row, target)
    with refuses(Conflict):
        await by_hand


@check
async def a_firing_that_runs_holds_back_the_next(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    assert [await _next_slot(stage), await _next_slot(stage)] == [1, 0]
    await _finish(stage)
    assert await _next_slot(stage) == 1
    assert await _states(stage) == ["fired", "skipped", "fired"]


@check
async def a_run_that_is_over_is_out_of_the_way(stage: Stage) -> None:
    await stage.harness.schedules.keep(flow=a_flow("a>b"))
    assert [await _next_slot(stage), await _next_slot(stage)] == [1, 0]
    await _finish(stage)
    assert await _next_slot(stage) == 1
    await _finish(stage)


@check
async def what_waits_goes_when_the_way_is_free(stage: Stage) -> None:
    await stage.harness.schedules.keep(overlap="queue")
    assert [await _next_slot(stage), await _next_slot(stage)] == [1, 0]
    await _finish(stage)
    await stage.clock.advance(seconds=2)
    assert await stage.harness.schedule_once() == 1
    assert await _states(stage) == ["fired", "fired"]


@check
async def a_slot_that_fired_does_not_wait_any_more(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    await _next_slot(stage)
    (slot,) = await stage.harness.schedules.slots()
    schedule_id = (await _row(stage)).schedule_id
    database = stage.engine.database
    assert await database.fetchval(sql("release_slot"), schedule_id, slot.slot, 9, None, "", NAME) is None
    await database.fetch(sql("drop_slots"), schedule_id, [slot.slot], "replaced", "", NAME)
    assert await _states(stage) == ["fired"]


@check
async def a_clock_that_goes_back_undoes_no_firing(stage: Stage) -> None:
    await stage.harness.schedules.keep(overlap="allow")
    await _next_slot(stage)
    await _next_slot(stage)
    await stage.clock.step(-1.5 * HOUR)
    assert await stage.harness.schedule_once() == 0
    await stage.clock.advance("1h")
    assert await stage.harness.schedule_once() == 0
    assert await _states(stage) == ["fired", "fired"]


@check
async def a_clock_that_goes_back_leaves_what_came_before(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    for _ in range(3):
        await _next_slot(stage)
    await stage.clock.step(-0.5 * HOUR)
    await stage.harness.schedule_once()
    assert await _states(stage) == ["fired", "skipped"]


@check
async def slots_in_use_are_not_forgotten(stage: Stage) -> None:
    await stage.harness.schedules.keep(overlap="queue", max_waiting=1)
    for _ in range(14):
        await _next_slot(stage)
    await stage.clock.advance("9d")
    await retain_once(stage.engine.database, days=1)
    assert await _states(stage) == ["fired", "waiting"] + ["skipped"] * 10


@check
async def the_schema_refuses_a_slot_twice(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    await _next_slot(stage)
    with refuses(asyncpg.UniqueViolationError):
        await stage.engine.database.fetch(
            "insert into holdfast.slot (schedule_id, slot_at, tenant_id, state, cause)"
            " select schedule_id, slot_at, tenant_id, 'k', cause from holdfast.slot"
        )


@check
async def the_schema_refuses_a_firing_of_nothing(stage: Stage) -> None:
    await stage.harness.schedules.keep()
    await _next_slot(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.slot set task_id = null")
