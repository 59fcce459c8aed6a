"""A peer that froze in its transaction holds a run, letters, a task or the count of a limit, for longer than a lease.

That costs nobody finished work and no lease that has nothing to do with it, over either line. Many reapers look at a
quick pace, so that a lease that runs out for a moment is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from tests.core.flows import a_node
from tests.waiting import BLOCKED

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.maintenance.loops import Loops
from holdfast.testing.factories import a_failure

NODES = 5
REAPERS = 6
LEASES = 2.5
"""For how many leases the peer is frozen."""
PAST = "select holdfast.instant() > $1::timestamptz + make_interval(secs => $2)"
ALL_LEASED = "select bool_and(lease_expires_at > holdfast.instant()) from holdfast.live"
HOLDS = {
    "run": "select from holdfast.run where run_id = $1 for no key update",
    "letter": "select from holdfast.dead_letter where run_id = $1 for update",
    "task": "select from holdfast.live where task_id = $1 for update",
    "limit": "select pg_advisory_xact_lock(1752132965, queue_id) from holdfast.queue where $1 > 0",
}


class Work:
    """Attempts that wait until they may end, and what ran how often."""

    def __init__(self) -> None:
        self.began: Counter[str] = Counter()
        self.may_end = asyncio.Event()
        self.app = hf.App("local")
        self.app.action()(self.act)

    async def act(self, ctx: hf.Context) -> int:
        self.began[ctx.task_id] += 1
        await self.may_end.wait()
        return 1


@pytest.fixture
def work():
    return Work()


@pytest.fixture
async def reapers(engine):
    tasks = [asyncio.create_task(_reap(Loops(engine))) for _ in range(REAPERS)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _reap(loops):
    while True:
        await loops.reap()
        await asyncio.sleep(0.02)


def a_fan():
    nodes = tuple(a_node(f"n{number}", "local.act") for number in range(NODES))
    return FlowDefinition(name="local.fan", nodes=nodes, edges=()).validated()


@asynccontextmanager
async def frozen(engine, what, number):
    """Hold something in an open transaction until the block ends."""
    session = await engine.database.connect()
    try:
        async with session.transaction():
            await session.fetch(HOLDS[what], number)
            yield
    finally:
        await session.close()


async def for_leases(engine, settings, eventually):
    """Until so many leases have passed."""
    since = await engine.database.fetchval("select holdfast.instant()")
    await eventually(lambda: engine.database.fetchval(PAST, since, LEASES * settings.worker.lease_seconds))


@pytest.mark.representative(one_in=4)
@pytest.mark.parametrize("what", ["run", "letter"])
async def test_finished_nodes_outlast_a_peer_that_holds_what_their_end_needs(
    running_worker, work, engine, harness, settings, eventually, reapers, what
):
    run = await harness.runs.start(a_fan())
    if what == "letter":
        for lease in await harness.claim(NODES):
            await harness.settle(lease, Failed(a_failure()))
        await harness.runs.retry(run)
    async with running_worker(app=work.app, slots=NODES):
        await eventually(lambda: len(work.began) == NODES)
        async with frozen(engine, what, int(run)):
            work.may_end.set()
            await eventually(lambda: engine.database.fetchval(BLOCKED))
            await for_leases(engine, settings, eventually)
            # Settling gives up in time, and renews the leases before it tries again.
            await eventually(lambda: engine.database.fetchval(ALL_LEASED), seconds_max=10)
        await eventually(lambda: _is_over(harness, run))
    assert set(work.began.values()) == {1}
    assert await harness.runs.state(run) == "completed"


async def _is_over(harness, run):
    return await harness.runs.state(run) not in ("queued", "running")


@pytest.mark.representative(one_in=2)
async def test_one_task_that_is_held_costs_no_other_lease(
    running_worker, work, client_of, engine, harness, settings, eventually, reapers
):
    async with client_of(work.app) as client, running_worker(app=work.app, slots=4):
        tasks = await client.enqueue_many("local.act", [{}] * 4)
        await eventually(lambda: len(work.began) == 4)
        held, *others = tasks
        async with frozen(engine, "task", int(held.task_id)):
            await for_leases(engine, settings, eventually)
            work.may_end.set()
            assert [await task.result(20) for task in others] == [1, 1, 1]
        assert await held.result(20) == 1
    assert [work.began[task.task_id] for task in others] == [1, 1, 1]


@pytest.mark.representative(one_in=2)
async def test_a_lease_that_was_busy_for_a_while_goes_on(
    running_worker, work, client_of, engine, settings, eventually, reapers
):
    """It is asked for again as soon as it is free, well before its holder gives it up."""
    async with client_of(work.app) as client, running_worker(app=work.app, slots=1):
        task = await client.enqueue("local.act")
        await eventually(lambda: work.began)
        read = "select lease_expires_at from holdfast.live"
        for _ in range(3):
            since = await engine.database.fetchval(read)
            async with frozen(engine, "task", int(task.task_id)):
                half = settings.worker.lease_seconds / -2
                await eventually(lambda: engine.database.fetchval(PAST, since, half))  # noqa: B023
            await eventually(lambda: engine.database.fetchval(f"select ({read}) > $1", since))  # noqa: B023
        work.may_end.set()
        assert await task.result(20) == 1
    assert set(work.began.values()) == {1}


@pytest.mark.representative(one_in=2)
async def test_a_limit_that_is_counted_elsewhere_holds_up_no_end_and_is_looked_at_again(
    running_worker, work, client_of, engine, harness, settings, eventually, reapers, line
):
    slow = line()
    if hasattr(slow, "poll_seconds"):
        slow.poll_seconds = 3600.0
    async with client_of(work.app) as client, running_worker(app=work.app, slots=2, line=slow):
        first = await client.enqueue("local.act")
        await eventually(lambda: work.began)
        await harness.limit(max_running=2)
        second = await client.enqueue("local.act")
        await eventually(lambda: len(work.began) == 2)
        async with frozen(engine, "limit", 1):
            third = await client.enqueue("local.act")
            work.may_end.set()
            # Settled at once: the claim that comes with it waits for nobody.
            assert [await task.result(20) for task in (first, second)] == [1, 1]
            await for_leases(engine, settings, eventually)
            assert work.began[third.task_id] == 0
        assert await third.result(20) == 1
    assert set(work.began.values()) == {1}
