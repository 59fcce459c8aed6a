"""Worker processes die or freeze at any moment, under load: nothing is lost, and each completion counts once."""

from __future__ import annotations

import os
import signal

import pytest
from tests.faults.load import all_over
from tests.faults.victim_app import blocking
from tests.waiting import eventually
from tests.worker.conftest import is_over

from holdfast.store.statements import sql

pytestmark = pytest.mark.crash

KILLS = 4


async def until(engine, query, *arguments):
    """Wait until a query is true."""
    await eventually(lambda: engine.database.fetchval(query, *arguments))


async def completed(engine):
    return await engine.database.fetchval("select count(*) from holdfast.attempt where state = 'c'")


async def test_killed_worker_processes_lose_nothing(load, fleet, engine, log, chance):
    fleet.processes = 2
    fleet.start()
    for kill in range(KILLS):
        for _ in range(25):
            await load.step()
        goal = await completed(engine) + chance.randint(1, 20)
        await until(
            engine,
            # Some of what was asked for was canceled or fails: there may be fewer left to complete.
            "select not exists (select from holdfast.live) or count(*) >= $1 from holdfast.attempt where state = 'c'",
            goal,
        )
        if kill == KILLS // 2:
            fleet.kill_a_parent(chance)
        else:
            fleet.kill_a_child(chance)
    await all_over(engine)
    await load.judge(engine, log)


async def test_a_machine_that_stood_still_past_a_lease_has_nobody_left_to_speak_late(load, fleet, engine, log, chance):
    """Its worker was killed by its own fuse before the lease could pass on; its parent comes back, starts another."""
    fleet.start()
    load.promised[1] = (await load.client.enqueue(blocking, number=1, seconds=0.4)).task_id
    await until(engine, "select count(*) = 1 from holdfast.live where state = 'r'")
    frozen = fleet.children()
    parent = fleet.parents[0]
    # The parent would kill a child that cannot renew, so it is frozen as well: a whole machine that stood still.
    for pid in (parent.pid, *frozen):
        os.kill(pid, signal.SIGSTOP)
    await until(engine, "select lease_expires_at < holdfast.instant() from holdfast.live")
    assert frozen and all(is_over(pid) for pid in frozen)
    second = fleet.start()
    await all_over(engine)
    winner = await engine.database.fetchval("select worker_id from holdfast.attempt where state = 'c'")
    os.kill(parent.pid, signal.SIGCONT)
    before = await engine.database.fetch("select * from holdfast.attempts order by attempt")
    await until(engine, "select count(*) >= 3 from holdfast.worker")
    assert await engine.database.fetch("select * from holdfast.attempts order by attempt") == before
    assert [row["state"] for row in before] == ["lost", "completed"]
    assert before[1]["worker_id"] == winner
    assert second.poll() is None
    await load.judge(engine, log)


@pytest.mark.parametrize("how", ["complete", "beat"])
async def test_what_a_zombie_sends_is_refused(how, load, engine, harness, clock):
    """Where no fuse burns, one may come back: the statement itself refuses what it says, step by step."""
    await load.client.enqueue(blocking, number=1, seconds=0.0)
    harness.know(blocking.name)
    zombie = await harness.claim_one(worker="zombie")
    await clock.advance(seconds=zombie.seconds + 1)
    await harness.reap_once()
    heir = await harness.claim_one(worker="heir")
    if how == "beat":
        assert (await harness.heartbeat(zombie)).lost
    else:
        late = [[zombie.claimed.task_id], [zombie.attempt], [zombie.token], [b"1"]]
        row = await engine.database.fetchrow(sql("settle_completed"), *late, True)
        assert row["accepted"] == 0
    assert (await harness.task(heir.task_id)).attempt == 2
