"""While an old snapshot is open, what was taken cannot be cleaned up: claims begin where they left off."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import asyncpg
import pytest

from holdfast.core.tasks import floors
from holdfast.core.tasks.floors import parts_above
from holdfast.core.tasks.outcome import Completed, Released
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.engine.queries import checkup
from holdfast.store.statements import sql
from holdfast.testing.factories import a_task

TAKEN, LEFT = 20_000, 50
ACTION, WORKER = "shop.charge", "first"


@pytest.fixture
async def pinned(engine, holdfast_url):
    """A snapshot that stays open for as long as the test."""
    connection = await asyncpg.connect(holdfast_url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetch("select count(*) from holdfast.lane")
            yield connection
    finally:
        await connection.close()


async def taken_and_done(harness):
    """Many tasks came and went; some are left. Not through the engine: that would take its time."""
    database = harness.engine.database
    first = int((await harness.enqueue(a_task())).task_id)
    await database.fetch("select setval('holdfast.task_id', $1)", first + TAKEN)
    await database.fetch(
        "insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state)"
        " select t.task_id + n, t.tenant_id, t.lane_id, t.policy_id, 3, 3, t.priority, 'q'"
        " from holdfast.live t, generate_series(1, $1::int) n",
        TAKEN,
    )
    await database.fetch("delete from holdfast.live")
    return [int(one.task_id) for one in await harness.enqueue_many(a_task(), [{}] * LEFT)]


async def buffers(session, name, *arguments):
    """How many pages a statement touches, once planned."""
    types = {3: "", 8: ", int[], smallint[], bigint[], smallint[], bigint[]"}[len(arguments)]
    await session.execute(f"prepare looking (text[], text[], bigint{types}) as {sql(name)}")
    given = ", ".join(arguments)
    try:
        [row] = await session.fetch(f"explain (analyze, buffers, format json) execute looking ({given})")
    finally:
        await session.execute("deallocate looking")
    plan = json.loads(row[0])[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def array(values):
    return "array[" + ", ".join(str(value) for value in values) + "]"


@pytest.mark.breaks_invariants
async def test_a_look_from_a_floor_does_not_pass_what_was_taken(harness, engine, pinned):
    first, *_ = await taken_and_done(harness)
    lane_id = await engine.database.fetchval("select lane_id from holdfast.live limit 1")
    worker_id = await harness.worker_id(WORKER)
    who = (f"array['{ACTION}']", "null", str(worker_id))
    columns = [array(column) for column in zip(*parts_above({(lane_id, 5, False): first}), strict=True)]
    async with engine.database.session() as session:
        await session.execute("set plan_cache_mode = force_generic_plan; set enable_seqscan = off")
        whole = await buffers(session, "lane_heads", *who)
        from_floor = await buffers(session, "lane_heads_from", *who, *columns)
        await session.execute("reset all")
    assert whole > TAKEN / 100 and from_floor < 60 and whole > 5 * from_floor, (whole, from_floor)


class WorkerCallbacks:
    """A session that notes which looks it was asked for."""

    def __init__(self, session):
        self._session = session
        self.looks = []

    async def fetch(self, statement, *arguments):
        self.looks += [name for name in ("lane_heads", "lane_heads_from") if statement == sql(name)]
        return await self._session.fetch(statement, *arguments)

    def __getattr__(self, name):
        return getattr(self._session, name)


@pytest.fixture
def slow(monkeypatch):
    """Every look at everything counts as slow, and holds for some time."""
    monkeypatch.setattr(floors, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(floors, "SLOW_SCANS", 1)
    monkeypatch.setattr(floors, "SWEEP_SHARE", 1e9)


async def test_nothing_is_lost_below_a_floor(harness, engine, slow):
    await harness.enqueue_many(a_task(), [{}] * 10)
    late = await harness.enqueue(a_task(priority=7))
    identity = WorkerIdentity(
        worker_id=await harness.worker_id(WORKER), actions=[ACTION], queues=None, lease_seconds=10.0
    )
    claimer, now = Claimer(identity), 1000.0
    async with engine.database.session() as pooled:
        session = WorkerCallbacks(pooled)
        first = await claimer.claim(session, 4, now=now)
        second = await claimer.claim(session, 4, now=now + 1)
        assert session.looks == ["lane_heads", "lane_heads_from"]
        assert [one.task_id for one in first + second] == sorted(one.task_id for one in first + second)
        # Handed back, it has a smaller id than what comes next; and there is work of another priority.
        lease = await harness._lease(first[0], WORKER)
        await harness.settle(lease, Released("not mine"))
        third = await claimer.claim(session, 10, now=now + 2)
        assert [one.task_id for one in third][-1] == int(late.task_id) and len(third) == 3
        found = await claimer.claim(session, 10, now=now + 2 + floors.SWEEP_SECONDS_MAX)
        assert [one.task_id for one in found] == [first[0].task_id] and session.looks[-1] == "lane_heads"
    for one in [*first[1:], *second, *third, *found]:
        await harness.settle(await harness._lease(one, WORKER), Completed(b"1"))


async def test_a_check_up_names_who_keeps_old_rows_and_who_holds_back_events(engine, pinned, monkeypatch):
    monkeypatch.setattr(checkup, "TRANSACTION_SECONDS_MAX", -1.0)
    monkeypatch.setattr(checkup, "EVENT_SECONDS_MAX", -1.0)
    await pinned.fetch("select pg_current_xact_id()")
    # Another database of a shared server may have an older one.
    found = {one.name: one.detail for one in await checkup.check_up(engine.database, now=datetime.now(UTC))}
    assert re.search(r"session \d+ of \w+ on database", found["xmin age"])
    assert re.search(r"has been open for .*session \d+ of \w+ on database", found["events"])


async def test_new_lanes_are_found_beside_floors(harness, engine, slow):
    await harness.enqueue_many(a_task(), [{}] * 5)
    identity = WorkerIdentity(
        worker_id=await harness.worker_id(WORKER),
        actions=[ACTION, "shop.mail"],
        queues=None,
        lease_seconds=10.0,
    )
    claimer = Claimer(identity)
    async with engine.database.session() as session:
        await claimer.claim(session, 1, now=1000.0)
        mail = await harness.enqueue(a_task(action="shop.mail"))
        urgent = await harness.enqueue(a_task(priority=0))
        found = await claimer.claim(session, 10, now=1001.0)
    assert {int(mail.task_id), int(urgent.task_id)} <= {one.task_id for one in found} and len(found) == 6
