"""A launcher that loses the database, or dies, at any statement: the task still runs once, and no slot leaks."""

from __future__ import annotations

import pytest
from tests.launchers.platform import LOSE_ANSWER, REFUSE, Fixed, Platform, profile, reservation_of

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.states import AttemptState
from holdfast.engine.engine import Engine
from holdfast.errors import LeaseLost
from holdfast.launchers.loop import Launching
from holdfast.store.database import ANY_DB_ERROR
from holdfast.testing.crash import FaultMode, StatementFault

NEVER = 10**9


async def a_pass(engine, platform) -> None:
    """One pass of both kinds, by a launcher that is gone afterwards."""
    loop = Launching(engine, Fixed({"test": profile(platform)}))
    try:
        await loop.launch_once()
        await loop.supervise_once()
    except ANY_DB_ERROR:
        return


async def finish(harness, launching, clock, platform, task) -> None:
    """What others do afterwards, as time passes, until the task is over."""
    for _ in range(6):
        await clock.advance(seconds=31)
        await harness.reap_once()
        await harness.reconcile_once()
        await launching.launch_once()
        for order in [order for order in platform.running.values() if order.task_id == task]:
            try:
                lease = await harness.attach(reservation_of(order))
            except LeaseLost:
                continue
            await harness.settle(lease, Completed(b"1"))
        await launching.supervise_once()
        if (await harness.task(task)).state == "completed":
            return


@pytest.mark.representative(one_in=3)
@pytest.mark.parametrize("fault", ["", REFUSE, LOSE_ANSWER])
@pytest.mark.parametrize("mode", [FaultMode.CUT_BEFORE, FaultMode.CUT_AFTER])
async def test_it_runs_once_wherever_the_launcher_breaks(
    engine, holdfast_url, holdfast_settings, harness, queue_up, slots, clock, mode, fault
):
    platform = Platform()
    launching = Launching(engine, Fixed({"test": profile(platform)}))
    broken = StatementFault(mode, NEVER)
    async with Engine(holdfast_url, holdfast_settings, sessions_max=4, tap=broken) as its:
        statements, k = 1, 0
        while k <= statements:
            [task] = await queue_up()
            platform.faults = [fault] if fault else []
            # The first round breaks nothing, and tells how many statements there are to break at.
            broken.arm(k or NEVER)
            await a_pass(its, platform)
            statements = statements if k else NEVER - broken._left
            broken.arm(NEVER)
            platform.faults = []
            await finish(harness, launching, clock, platform, task)
            assert [one.state for one in await harness.attempts(task)] == [AttemptState.COMPLETED], f"at {k}"
            assert {order.attempt for order in platform.asked if order.task_id == task} == {1}
            assert await slots() == []
            platform.running.clear()
            k += 1
    assert statements > 10
