"""What was canceled, and failures that somebody dealt with, go with history; failures that nobody did never do."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_flow, a_map
from tests.engine.test_redrive_races import end_all, meeting
from tests.flow.steps import finish, step
from tests.waiting import waits

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.lifecycle.dead_letters.commands import ignore, redrive, resolve
from holdfast.engine.lifecycle.runs.redrive import redrive_run
from holdfast.engine.lifecycle.tasks.delete import delete_task
from holdfast.engine.maintenance.retention import begin_today, drop_old, retain_once
from holdfast.errors import Conflict, NotFound
from holdfast.testing import factories as a

WHO = {"actor": "ann", "reason": "known"}


async def later(harness, clock, *, days=31):
    """The block of what is there is over, and so long ago."""
    await clock.advance("1d")
    await begin_today(harness.engine.database)
    await clock.advance(f"{days}d")


async def retain(harness):
    return (await retain_once(harness.engine.database, days=30)).dropped


async def is_gone(harness, task_id):
    """Everything of it, and nothing is broken."""
    with pytest.raises(NotFound):
        await harness.task(task_id)
    rows = "select count(*) from holdfast.{} where task_id = $1"
    tables = ("ended", "dead_letter", "failure", "body")
    return [await harness.engine.database.fetchval(rows.format(one), int(task_id)) for one in tables] == [0] * 4


async def test_a_canceled_task_goes_with_its_block(harness, clock):
    task_id, completed = await a.a_canceled_task(harness), await a.a_completed_task(harness)
    await later(harness, clock)
    assert await retain(harness) >= 1
    assert await is_gone(harness, task_id) and await is_gone(harness, completed)


async def test_a_failure_that_somebody_dealt_with_goes_with_its_block(harness, clock):
    task_id = await a.a_failed_task(harness)
    await resolve(harness.engine, 1, task_id=int(task_id), **WHO)
    await later(harness, clock)
    assert await retain(harness) >= 1
    assert await is_gone(harness, task_id)


async def test_a_failure_that_was_left_is_kept_until_somebody_deletes_it(harness, clock):
    """Ignored by hand or parked by the engine: it failed, and nobody said that it is not needed."""
    task_id = await a.a_failed_task(harness)
    await ignore(harness.engine, 1, task_id=int(task_id), **WHO)
    await later(harness, clock, days=365)
    assert await retain(harness) == 0
    assert (await harness.task(task_id)).state == "failed"
    await delete_task(harness.engine, 1, int(task_id), **WHO)
    assert await retain(harness) >= 1
    assert await is_gone(harness, task_id)


async def test_a_failure_stays_as_long_after_somebody_dealt_with_it_as_history_is_kept(harness, clock):
    task_id = await a.a_failed_task(harness)
    await later(harness, clock, days=365)
    await resolve(harness.engine, 1, task_id=int(task_id), **WHO)
    await retain(harness)
    assert (await harness.task(task_id)).state == "failed"
    await later(harness, clock)
    await retain(harness)
    assert await is_gone(harness, task_id)


async def test_one_failure_that_nobody_dealt_with_keeps_no_other(harness, clock):
    open_, left = await a.a_failed_task(harness), await a.a_failed_task(harness)
    await resolve(harness.engine, 1, task_id=int(left), **WHO)
    await later(harness, clock, days=365)
    await retain(harness)
    assert (await harness.task(open_)).state == "failed" and len(await harness.letters(open_)) == 1
    assert await is_gone(harness, left)


async def test_a_failure_that_wanted_no_letter_is_kept(harness, clock):
    task_id = await a.a_failed_task(harness)
    database = harness.engine.database
    await database.fetch("delete from holdfast.dead_letter")
    await database.fetch("update holdfast.ended set has_letter = false")
    await later(harness, clock, days=365)
    await retain(harness)
    assert (await harness.task(task_id)).state == "failed"


async def test_a_canceled_run_and_one_that_failed_and_was_dealt_with_go_with_their_block(harness, clock):
    canceled = await harness.runs.start(a_flow("a>b"))
    await harness.runs.cancel(canceled)
    failed = await harness.runs.start(a_flow("a>b"))
    lease = await harness.claim_one()
    await harness.settle(lease, Failed(a.a_failure()))
    await later(harness, clock)
    assert await retain(harness) == 0
    await resolve(harness.engine, 1, task_id=int(lease.task_id), **WHO)
    await later(harness, clock)
    assert await retain(harness) >= 1
    rows = await harness.engine.database.fetchval("select count(*) from holdfast.run")
    assert rows == 0 and await is_gone(harness, lease.task_id) and failed != canceled


async def test_items_of_a_later_block_stay_as_long_as_their_run(harness, clock):
    """A failure of its day keeps neither."""
    failed = await a.a_failed_task(harness)
    run = await harness.runs.start(a_map())
    await later(harness, clock, days=0)
    await step(harness, outputs={0: {"all": [1, 2]}})
    await step(harness, outputs={1: 5})
    await finish(harness)
    await later(harness, clock, days=20)
    await retain(harness)
    await harness.runs.retry(run, only="gather")
    await later(harness, clock, days=40)
    await retain(harness)
    assert await step(harness) == [{"results": [5, 5]}]
    await later(harness, clock, days=40)
    await retain(harness)
    assert await harness.engine.database.fetchval("select count(*) from holdfast.attempt") == 0
    assert (await harness.task(failed)).state == "failed"


async def test_a_task_that_is_run_again_in_that_moment_keeps_its_block(harness, clock):
    """The re-drive took the end away, and had not committed when the block was looked at."""
    task_id = await a.a_failed_task(harness, input={"order": 7})
    await resolve(harness.engine, 1, task_id=int(task_id), **WHO)
    await later(harness, clock)
    database = harness.engine.database
    async with database.transaction() as session:
        from holdfast.engine.lifecycle.dead_letters.requeue import RequeueRequest, redrive_task

        await redrive_task(session, harness.engine.catalog, 1, int(task_id), RequeueRequest("ann", "fixed"))
        dropping = asyncio.ensure_future(drop_old(database, days=30))
        await waits(database, dropping)
    assert await dropping == 0
    lease = await harness.claim_one()
    assert lease.claimed.input == b'{"order":7}'
    await harness.settle(lease, Completed(b"1"))


async def test_a_completed_run_that_is_run_again_in_that_moment_keeps_its_block(harness, clock):
    run_id = await harness.runs.start(a_flow("a>b"))
    await end_all(harness)
    await later(harness, clock)
    engine = harness.engine

    async def retry(session):
        await redrive_run(session, engine.catalog, 1, int(run_id), actor="ann", reason="again", only="a")

    async with meeting(harness, retry, lambda: drop_old(engine.database, days=30)) as met:
        assert (await met.answer(), met.has_waited) == (0, True)
    await end_all(harness)
    assert await harness.runs.state(run_id) == "completed"
    assert await drop_old(engine.database, days=30) == 0
    await later(harness, clock)
    assert await drop_old(engine.database, days=30) >= 1


async def test_what_is_being_dropped_cannot_be_run_again(harness, clock):
    task_id = await a.a_failed_task(harness)
    await resolve(harness.engine, 1, task_id=int(task_id), **WHO)
    await later(harness, clock)
    answers = await asyncio.gather(
        drop_old(harness.engine.database, days=30),
        redrive(harness.engine, 1, int(task_id), **WHO),
        return_exceptions=True,
    )
    dropped, again = answers
    assert isinstance(again, NotFound | Conflict) == (dropped >= 1)
