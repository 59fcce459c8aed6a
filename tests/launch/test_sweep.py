"""A launcher that loses the database, or dies, at any statement: the task still runs once, and no slot leaks."""

from __future__ import annotations

import pytest
from tests.launch.platform import LOSE_ANSWER, REFUSE, Fixed, Platform, profile, reservation_of

from holdfast.core.outcome import Completed
from holdfast.core.states import AttemptState
from holdfast.dispatcher.engine import Engine
from holdfast.errors import LeaseLost
from holdfast.launch.loop import Launching
from holdfast.store.database import TROUBLE
from holdfast.testing.crash import Fault, Mode

STATEMENTS_MAX = 60


async def broken_pass(url, settings, platform, mode, k) -> bool:
    """One pass of both kinds whose database breaks at the k-th statement; whether it got so far."""
    fault = Fault(mode, 10**9)
    async with Engine(url, settings, sessions_max=4, tap=fault) as engine:
        loop = Launching(engine, Fixed({"test": profile(platform)}))
        fault.arm(k)
        try:
            await loop.launch_once()
            await loop.tend_once()
        except TROUBLE:
            pass
    return fault.fired


async def finish(dispatcher, launching, clock, platform, task) -> None:
    """What others do afterwards, as time passes, until the task is over."""
    for _ in range(6):
        await clock.advance(seconds=31)
        await dispatcher.reap_once()
        await dispatcher.reconcile_once()
        await launching.launch_once()
        for order in [order for order in platform.running.values() if order.task_id == task]:
            try:
                lease = await dispatcher.attach(reservation_of(order))
            except LeaseLost:
                continue
            await dispatcher.settle(lease, Completed(b"1"))
        await launching.tend_once()
        if (await dispatcher.task(task)).state == "completed":
            return


@pytest.mark.parametrize("fault", ["", REFUSE, LOSE_ANSWER])
@pytest.mark.parametrize("mode", [Mode.CUT_BEFORE, Mode.CUT_AFTER])
async def test_it_runs_once_wherever_the_launcher_breaks(
    engine, holdfast_url, holdfast_settings, dispatcher, queue_up, slots, clock, mode, fault
):
    platform = Platform()
    launching = Launching(engine, Fixed({"test": profile(platform)}))
    for k in range(1, STATEMENTS_MAX):
        [task] = await queue_up()
        platform.faults = [fault] if fault else []
        has_fired = await broken_pass(holdfast_url, holdfast_settings, platform, mode, k)
        platform.faults = []
        await finish(dispatcher, launching, clock, platform, task)
        assert [one.state for one in await dispatcher.attempts(task)] == [AttemptState.COMPLETED], f"statement {k}"
        assert {order.attempt for order in platform.asked if order.task_id == task} == {1}
        assert await slots() == []
        platform.running.clear()
        if not has_fired:
            assert k > 8
            return
    raise AssertionError("the pass never ends")
