"""What was launched on another machine is stopped there, and not forgotten here meanwhile."""

from __future__ import annotations

import pytest

from holdfast.launch.launcher import NotHere
from holdfast.launch.process import ProcessLauncher


async def test_what_only_another_machine_can_stop_is_left_to_it_for_a_day(
    engine, launching, queue_up, dispatcher, platform, clock
):
    [task] = await queue_up()
    await launching.launch_once()
    await dispatcher.cancel(task)
    there, platform.stop = platform.stop, elsewhere
    assert await launching.tend_once() == 0
    assert await engine.database.fetchval("select count(*) from holdfast.launch") == 1
    platform.stop = there
    assert await launching.tend_once() == 1  # at once: nobody's platform is in trouble
    [task] = await queue_up()
    await launching.launch_once()
    await dispatcher.cancel(task)
    platform.stop = elsewhere
    await clock.advance("25h")
    assert await launching.tend_once() == 1


async def elsewhere(_name, _handle):
    raise NotHere("It was launched on another machine.")


async def test_a_process_of_another_machine_is_not_stopped_here():
    launcher = ProcessLauncher("here", {}, url="postgresql://", app_ref="", packs=())
    with pytest.raises(NotHere, match="elsewhere"):
        await launcher.stop("a-name", "elsewhere/12345678/1/1")
