"""A re-drive at the very moment of another one, of a success and of a cancel: one of them wins, and all agree on it.

The first of two holds its transaction open until the other waits for what it locked, so they do meet.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.core.flows import a_diamond
from tests.waiting import waits

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.dead_letters.requeue import RequeueRequest, redrive_task
from holdfast.engine.lifecycle.dead_letters.sweep import sweep_once
from holdfast.engine.lifecycle.runs.commands import cancel_run_in
from holdfast.engine.lifecycle.tasks.cancel import cancel_in
from holdfast.engine.lifecycle.tasks.delete import delete_group
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import Conflict
from holdfast.testing import factories as a

BY = RequeueRequest("ann", "fixed")


class Meeting:
    """What came second, and what it answered."""

    def __init__(self) -> None:
        self.late: asyncio.Future[object] | None = None
        self.has_waited = False

    async def answer(self):
        [found] = await asyncio.gather(self.late, return_exceptions=True)
        return found


@asynccontextmanager
async def meeting(harness, first, second):
    """Let `first` do its work in a transaction, and `second` run into it before that is committed."""
    database, met = harness.engine.database, Meeting()
    async with database.transaction() as session:
        await first(session)
        met.late = asyncio.ensure_future(second())
        met.has_waited = await waits(database, met.late)
    yield met


def redriving(harness, task_id):
    async def go(session):
        assert await redrive_task(session, harness.engine.catalog, 1, int(task_id), BY) is not None

    return go


def sweeping(harness):
    async def go():
        return (await sweep_once(harness.engine.database, harness.engine.catalog)).count

    return go


async def end_all(harness):
    """Let whatever goes come to an end, so that nothing is left to be out of step."""
    while leases := await harness.claim(10):
        for lease in leases:
            await harness.settle(lease, Completed(b"{}"))


async def half_a_diamond(harness):
    """A run whose one node failed while another runs."""
    flow = a_diamond()
    run_id = await harness.runs.start(flow)
    await harness.settle(await harness.claim_one(), Completed(b"{}"))
    left, right = sorted(await harness.claim(10), key=lambda lease: int(lease.task_id))
    await harness.settle(left, Failed(a.a_failure()))
    return run_id, left.task_id, right


async def test_of_two_re_drives_that_meet_one_is_applied(harness):
    task_id = await a.a_failed_task(harness)
    second = lambda: harness.redrive(task_id)  # noqa: E731
    async with meeting(harness, redriving(harness, task_id), second) as met:
        refused = await met.answer()
    assert met.has_waited and isinstance(refused, Conflict) and "in status 'queued'" in refused.detail
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation) == ("queued", 2)
    assert [one.dispatches for one in await harness.letters(task_id)] == [1]


@pytest.mark.parametrize(("verb", "has", "wants"), [("redrive", 0, 2), ("delete", 1, 2)])
async def test_everybody_locks_letters_oldest_first(harness, verb, has, wants):
    """Who has an older letter gets a newer one, though another waits for what he has."""
    again, _ = await a.a_failed_task(harness), await a.a_failed_task(harness)
    await harness.redrive(again)
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
    database = harness.engine.database
    ids = await database.fetchval("select array_agg(dead_letter_id order by dead_letter_id) from holdfast.dead_letter")
    [letter, _] = await harness.letters(again)
    acts = {
        "redrive": lambda: harness.redrive(again),
        "delete": lambda: delete_group(harness.engine, 1, letter.fingerprint, actor="ann", reason="gone"),
    }
    hold = "select from holdfast.dead_letter where dead_letter_id = $1 for update"
    async with database.transaction() as session:
        await session.fetch(hold, ids[has])
        late = asyncio.ensure_future(acts[verb]())
        assert await waits(database, late)
        await session.fetch(hold, ids[wants])
    await late


async def test_a_sweep_that_meets_a_re_drive_leaves_its_letter_to_it(harness):
    task_id = await a.a_failed_task(harness)
    [letter] = await harness.letters(task_id)
    await harness.request(letter.fingerprint)
    async with meeting(harness, redriving(harness, task_id), sweeping(harness)) as met:
        assert await met.answer() == 0
    assert (await harness.task(task_id)).generation == 2
    assert [one.dispatches for one in await harness.letters(task_id)] == [1]


async def test_of_two_re_drives_of_a_run_that_meet_one_is_applied(harness):
    run_id, left, right = await half_a_diamond(harness)
    second = lambda: harness.runs.retry(run_id)  # noqa: E731
    async with meeting(harness, redriving(harness, left), second) as met:
        refused = await met.answer()
    assert met.has_waited and isinstance(refused, Conflict)
    assert [one.dispatches for one in await harness.letters(left)] == [1]
    await harness.settle(right, Completed(b"{}"))
    await end_all(harness)
    assert await harness.runs.state(run_id) == "completed"


@pytest.mark.parametrize("comes_first", ["success", "redrive"])
async def test_a_success_that_meets_a_re_drive_of_its_run_counts(harness, comes_first):
    """The node that completed keeps its output; the one that failed runs again; the end follows both."""
    run_id, left, right = await half_a_diamond(harness)
    if comes_first == "success":

        async def first(session):
            reports = [report_of(right.claimed, Completed(b"{}"))]
            await settle(session, harness.engine.catalog, reports)

        second = lambda: harness.redrive(left)  # noqa: E731
    else:
        first = redriving(harness, left)
        second = lambda: harness.settle(right, Completed(b"{}"))  # noqa: E731
    async with meeting(harness, first, second) as met:
        assert not isinstance(await met.answer(), Exception)
    assert met.has_waited
    nodes = await harness.runs.nodes(run_id)
    assert (nodes["left"], nodes["right"], nodes["end"]) == ("queued", "completed", "blocked")
    await end_all(harness)
    assert await harness.runs.state(run_id) == "completed"
    assert [one.state for one in await harness.letters(left)] == ["resolved"]


@pytest.mark.parametrize("dispatches", [1, 5])
async def test_a_success_that_meets_the_sweep_resolves_its_letter(harness, dispatches):
    """Also one that the sweep is about to park: a success resolves all letters of its task."""
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.engine.database.fetch(
        "update holdfast.dead_letter set dispatches = $1, wants_sweep = true", dispatches
    )
    lease = await harness.claim_one()

    async def first(session):
        await settle(session, harness.engine.catalog, [report_of(lease.claimed, Completed(b"1"))])

    async with meeting(harness, first, sweeping(harness)) as met:
        assert await met.answer() == 0
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation) == ("completed", 2)
    assert [(one.state, one.disposition) for one in await harness.letters(task_id)] == [("resolved", "retry_succeeded")]


async def test_a_cancel_that_meets_a_re_drive_finds_the_task_as_it_was(harness):
    task_id = await a.a_failed_task(harness)
    second = lambda: harness.cancel(task_id)  # noqa: E731
    async with meeting(harness, redriving(harness, task_id), second) as met:
        await met.answer()
    assert (await harness.task(task_id)).state == "queued"
    assert await harness.cancel(task_id) == "canceled"
    assert (await harness.task(task_id)).generation == 2


async def test_a_re_drive_that_meets_a_cancel_of_the_new_attempt_is_refused(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)

    async def first(session):
        catalog = harness.engine.catalog
        await cancel_in(session, catalog, 1, [int(task_id)], grace_seconds=1, reason="", actor="ann")

    async with meeting(harness, first, lambda: harness.redrive(task_id)) as met:
        assert isinstance(await met.answer(), Conflict)
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation) == ("canceled", 2)


@pytest.mark.parametrize("comes_first", ["cancel", "redrive"])
async def test_a_run_that_is_canceled_and_re_driven_at_once_is_canceled(harness, comes_first):
    run_id, left, right = await half_a_diamond(harness)

    async def canceling(session):
        await cancel_run_in(session, harness.engine.catalog, 1, int(run_id), actor="ann", reason="")

    if comes_first == "cancel":
        first, second = canceling, lambda: harness.redrive(left)
    else:
        first, second = redriving(harness, left), lambda: harness.runs.cancel(run_id)
    async with meeting(harness, first, second) as met:
        answer = await met.answer()
    assert met.has_waited
    if comes_first == "cancel":
        assert isinstance(answer, Conflict) and answer.code == "execution_not_retryable"
        assert [one.state for one in await harness.letters(left)] == ["open"]
    await harness.runs.repair_once()
    await harness.settle(right, Completed(b"{}"))
    await harness.runs.repair_once()
    assert await harness.runs.state(run_id) == "canceled"
