"""A network that says nothing, answers nothing, or takes its time, between one worker and its database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.faults.load import all_over
from tests.faults.proxy import ANSWERS, REQUESTS, Proxy
from tests.faults.test_connections import working
from tests.faults.victim_app import stuck_once
from tests.waiting import eventually

pytestmark = pytest.mark.crash

LOST = "select count(*)::int from holdfast.failure where state = 'l'"
HELD = 5


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("ways", [(REQUESTS, ANSWERS), (ANSWERS,)], ids=["both ways", "answers only"])
async def test_a_silent_partition_stops_the_worker_before_others_take_over(
    load, engine, log, chance, quick_settings, ways
):
    proxy = Proxy(engine.database.url, chance=chance, commits=0.0, others=0.0)
    # Both workers and the test share one event loop: a fifth of the lease has to bear the stalls of a busy machine.
    patient = replace(quick_settings, worker=replace(quick_settings.worker, lease_seconds=5.0))
    async with proxy.serving() as url, working(patient, url) as cut_off:
        for _ in range(HELD):
            number = load._number()
            load.promised[number] = (await load.client.enqueue(stuck_once, number=number)).task_id

        async def holds_all() -> bool:
            return len(cut_off.state.running) == HELD

        await eventually(holds_all, seconds_max=60.0)
        proxy.fall_silent(*ways)
        async with working(patient, engine.database.url):

            async def one_is_lost() -> bool:
                return await engine.database.fetchval(LOST) > 0

            try:
                await eventually(one_is_lost, seconds_max=60.0)
                assert not cut_off.state.running, "it still runs what was taken from it"
                for _ in range(20):
                    await load.step()
            finally:
                proxy.heal()
            await all_over(engine)
    await load.judge(engine, log)


async def test_a_slow_network_costs_no_attempt(load, engine, log, chance, quick_settings):
    proxy = Proxy(engine.database.url, chance=chance, commits=0.0, others=0.0)
    # What is slow is the network, not this machine: a lease bears its stalls.
    patient = replace(quick_settings, worker=replace(quick_settings.worker, lease_seconds=8.0))
    async with proxy.serving() as url, working(patient, url):
        proxy.delay_seconds_max = 0.08
        for _ in range(40):
            await load.step()
        await all_over(engine)
        proxy.delay_seconds_max = 0.0
    await load.judge(engine, log)
    assert await engine.database.fetchval(LOST) == 0
