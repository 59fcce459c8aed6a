"""When a worker was asked for stays with the attempt, also when what was launched for it is long over."""

from __future__ import annotations

import pytest
from tests.launchers.platform import reservation_of

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.lifecycle.tasks.delete import delete_task
from holdfast.engine.maintenance.retention import begin_today, drop_old
from holdfast.engine.queries.task_detail import show_task
from holdfast.testing.factories import a_failure, a_running_task

KEPT = "select count(*) from holdfast.dispatched"


@pytest.fixture
def attempts(engine):
    """The attempts of a task, as it is shown and in the view."""

    async def read(task_id):
        shown = (await show_task(engine.database, engine.catalog, 1, int(task_id))).attempts
        rows = await engine.database.fetch(
            "select dispatched_at from holdfast.attempts where task_id = $1 order by attempt", task_id
        )
        assert [row[0] for row in rows] == [one.dispatched_at for one in shown]
        return shown

    return read


@pytest.fixture
def attached(harness, launching, platform, queue_up, clock):
    """A task whose worker was asked for, and came a minute later."""

    async def made():
        await queue_up()
        await launching.launch_once()
        await clock.advance(seconds=60)
        return await harness.attach(reservation_of(platform.asked[-1]))

    return made


async def test_it_is_known_while_the_launch_is_and_after(attached, attempts, harness, launching, engine):
    lease = await attached()
    [before] = await attempts(lease.task_id)
    assert (before.started_at - before.dispatched_at).total_seconds() >= 60
    await harness.settle(lease, Completed(b"1"))
    await launching.supervise_once()
    assert await engine.database.fetchval("select count(*) from holdfast.launch") == 0
    [after] = await attempts(lease.task_id)
    assert (after.dispatched_at, after.started_at) == (before.dispatched_at, before.started_at)


async def test_an_attempt_that_was_pulled_was_dispatched_when_it_began(attempts, harness):
    lease = await a_running_task(harness)
    [running] = await attempts(lease.task_id)
    assert running.dispatched_at == running.started_at is not None
    await harness.settle(lease, Failed(a_failure()))
    [failed] = await attempts(lease.task_id)
    assert failed.dispatched_at == failed.started_at == running.started_at


async def test_it_goes_with_its_day(attached, harness, launching, engine, clock):
    await harness.settle(await attached(), Completed(b"1"))
    await launching.supervise_once()
    assert await engine.database.fetchval(KEPT) == 1
    await clock.advance("1d")
    await begin_today(engine.database)
    await clock.advance("40d")
    await drop_old(engine.database, days=30)
    assert await engine.database.fetchval(KEPT) == 0


async def test_it_is_kept_on_every_day(attached, attempts, harness, launching, engine, clock):
    """Blocks of ids are not all of one size."""
    for _ in range(3):
        await clock.advance("1d")
        await begin_today(engine.database)
    lease = await attached()
    await harness.settle(lease, Completed(b"1"))
    await launching.supervise_once()
    [kept] = await attempts(lease.task_id)
    assert await engine.database.fetchval(KEPT) == 1 and kept.dispatched_at < kept.started_at


async def test_it_is_deleted_with_its_task(attached, harness, launching, engine):
    lease = await attached()
    await harness.settle(lease, Failed(a_failure("validation: no such order")))
    await launching.supervise_once()
    assert await engine.database.fetchval(KEPT) == 1
    await delete_task(engine, 1, int(lease.task_id), actor="anna", reason="done with it")
    assert await engine.database.fetchval(KEPT) == 0
