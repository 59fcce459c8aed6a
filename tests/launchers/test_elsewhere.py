"""What was launched on another machine is stopped there, and not forgotten here meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.launchers.platform import Fixed, Platform, profile
from tests.waiting import eventually

from holdfast.engine.launching import launch as verbs
from holdfast.launchers.contract import NotHere
from holdfast.launchers.loop import LAUNCHES_AT_ONCE, Launching
from holdfast.launchers.process import ProcessLauncher


async def test_what_only_another_machine_can_stop_is_left_to_it_for_a_day(
    engine, launching, queue_up, harness, platform, clock
):
    [task] = await queue_up()
    await launching.launch_once()
    await harness.cancel(task)
    there, platform.stop = platform.stop, elsewhere
    assert await launching.supervise_once() == 0
    assert await engine.database.fetchval("select count(*) from holdfast.launch") == 1
    platform.stop = there
    assert await launching.supervise_once() == 1  # at once: nobody's platform is in trouble
    [task] = await queue_up()
    await launching.launch_once()
    await harness.cancel(task)
    platform.stop = elsewhere
    await clock.advance("25h")
    assert await launching.supervise_once() == 1


async def elsewhere(_name, _handle):
    raise NotHere("It was launched on another machine.")


async def test_a_process_of_another_machine_is_not_stopped_here():
    launcher = ProcessLauncher("here", {}, url="postgresql://", app_ref="", packs=())
    with pytest.raises(NotHere, match="elsewhere"):
        await launcher.stop("a-name", "elsewhere/12345678/1/1")


async def test_what_cannot_be_stopped_here_makes_room_for_what_can(launching, queue_up, harness, platform, monkeypatch):
    monkeypatch.setattr(verbs, "OVER_BATCH", 1)
    tasks = await queue_up(2)
    await launching.launch_once()
    for task in tasks:
        await harness.cancel(task)
    there = platform.asked[0].name

    async def stop(name, _handle):
        if name == there:
            raise NotHere("It was launched on another machine.")

    platform.stop = stop
    assert await launching.supervise_once() + await launching.supervise_once() == 1


async def test_a_platform_that_does_not_answer_holds_up_nothing_of_another(engine, queue_up, harness, platform):
    silent, other = Platform(), "shop.other"
    here = Launching(engine, Fixed({"test": profile(platform), "silent": profile(silent, name="silent", slots=99)}))
    tasks = [*await queue_up(launcher="silent"), *await queue_up(action=other)]
    await here.launch_once()
    silent.stop = silent.on_launch = _silence
    for task in tasks:
        await harness.cancel(task)
    await queue_up(LAUNCHES_AT_ONCE, launcher="silent")
    running = asyncio.create_task(here.run())
    await eventually(lambda: platform.stopped and len(here._busy) == LAUNCHES_AT_ONCE)
    await queue_up(action=other)
    await eventually(lambda: len(platform.asked) == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _silence(*_given):
    await asyncio.Event().wait()
