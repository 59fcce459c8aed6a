"""What is older than history goes batch by batch; what is not is not even looked at."""

from __future__ import annotations

import pytest
from tests.core.flows import a_wait
from tests.store.visits import visits

from holdfast.engine.maintenance import retention
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.maintenance.retention import retain_once
from holdfast.store.statements import sql

MANY = 5_000


async def write_events(database, count, *, days_ago=0.0):
    """So many batches of events, in order."""
    await database.fetch(
        """
        insert into holdfast.event (tenant_id, kind, task_ids, attempts, at)
        select 1, 'queue.resumed', '{}', '{}', holdfast.instant() - make_interval(secs => $2 * 86400)
        from generate_series(1, $1::int)
        """,
        count,
        days_ago,
    )


async def send_signals(database, count, *, days_ago=0.0):
    await database.fetch(
        """
        insert into holdfast.signal (tenant_id, wait_key, payload, at)
        select 1, 'paid', '1', holdfast.instant() - make_interval(secs => $2 * 86400)
        from generate_series(1, $1::int)
        """,
        count,
        days_ago,
    )


async def left(database, table="event"):
    return await database.fetchval(f"select count(*) from holdfast.{table}")


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(retention, "FORGET_BATCH", 10)
    monkeypatch.setattr(retention, "BATCHES_MAX", 3)


async def test_young_events_are_not_looked_through(engine):
    await write_events(engine.database, MANY)
    seen = await visits(engine.database, "delete_old_events", "30", "10000", "'0'", "0")
    assert seen["event"] <= 2


async def test_a_batch_of_old_events_looks_no_further(engine):
    await write_events(engine.database, MANY, days_ago=31)
    seen = await visits(engine.database, "delete_old_events", "30", "10", "'0'", "0")
    assert seen["event"] <= 2 * 10


async def test_young_events_are_left_by_a_batch_that_meets_them(engine):
    await write_events(engine.database, 3, days_ago=31)
    await write_events(engine.database, 5)
    await retain_once(engine.database, days=30)
    assert await left(engine.database) == 5


@pytest.mark.usefixtures("small_batches")
async def test_old_events_go_batch_after_batch_and_a_pass_is_bounded(engine):
    await write_events(engine.database, 35, days_ago=31)
    assert (await retain_once(engine.database, days=30)).is_behind
    assert await left(engine.database) == 5
    assert not (await retain_once(engine.database, days=30)).is_behind
    assert await left(engine.database) == 0


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("write", [write_events, send_signals])
async def test_a_pass_that_left_something_comes_back_soon(engine, write):
    await write(engine.database, 35, days_ago=31)
    loops = Loops(engine)
    pauses = [await loops.retain() for _ in range(3)]
    assert pauses[0] is not None and pauses[0] < 1 and pauses[-1] is None


async def test_what_a_batch_deleted_is_not_in_the_way_of_the_next(engine, monkeypatch):
    """Deleted rows stay where they are as long as anybody may still see them."""
    monkeypatch.setattr(retention, "FORGET_BATCH", 10)
    await write_events(engine.database, 30, days_ago=31)
    asked = []
    fetch = engine.database.fetch

    async def noting(statement, *arguments):
        asked.append(arguments[-2:])
        return await fetch(statement, *arguments)

    monkeypatch.setattr(engine.database, "fetch", noting)
    await retention._forget_events(engine.database, 30)
    assert len(asked) == len(set(asked)) == 4


async def test_signals_that_stay_are_not_looked_through(engine):
    await send_signals(engine.database, MANY)
    seen = await visits(engine.database, "delete_old_signals", "30", "10000", "0")
    assert seen["signal"] <= 3 and not seen["run"]


async def test_young_signals_are_left_by_a_batch_that_meets_them(engine):
    await send_signals(engine.database, 3, days_ago=31)
    await send_signals(engine.database, 5)
    await retain_once(engine.database, days=30)
    assert await left(engine.database, "signal") == 5


async def test_signals_that_open_runs_may_wait_for_keep_no_others(engine, harness, small_batches):
    """One open run of a tenant keeps what was sent to it, and what was sent to all since it began."""
    database = engine.database
    await send_signals(database, 25, days_ago=40)
    run = await harness.runs.start(a_wait())
    await database.fetch("update holdfast.run set created_at = holdfast.instant() - interval '35 days'")
    await send_signals(database, 25, days_ago=34)
    await database.fetch("insert into holdfast.tenant (name) values ('other')")
    await send_signals(database, 25, days_ago=34)
    await database.fetch("update holdfast.signal set tenant_id = 2 where signal_id > 50")
    await database.fetch("update holdfast.signal set run_id = $1 where signal_id = 1", int(run))
    await database.fetch("update holdfast.signal set run_id = 99 where signal_id = 2")
    for _ in range(9):
        await retain_once(database, days=30)
    kept = await database.fetch("select signal_id, tenant_id from holdfast.signal order by 1")
    assert [row[0] for row in kept] == [1, *range(26, 51)] and {row[1] for row in kept} == {1}


async def test_failures_are_looked_through_once_a_day(engine, clock, monkeypatch):
    """Which worker a failure names is in no index."""
    asked = []
    fetch = engine.database.fetch

    async def noting(statement, *arguments):
        asked.append(statement)
        return await fetch(statement, *arguments)

    monkeypatch.setattr(engine.database, "fetch", noting)
    for _ in range(2):
        await clock.advance("1d")
        for _ in range(3):
            await retain_once(engine.database, days=30)
    assert asked.count(sql("delete_old_workers")) == 2
