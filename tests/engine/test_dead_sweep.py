"""The sweep, branch by branch, in the order and with the counts of S2. A plain task counts as its own run."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.lifecycle.dead_letters.sweep import repair_letters_once, sweep_once
from holdfast.engine.queries.verify import verify
from holdfast.testing import factories as a


async def a_requested_letter(harness, **options):
    """A failed task whose retry somebody asked for."""
    task_id = await a.a_failed_task(harness, **options)
    [letter] = await harness.letters(task_id)
    await harness.request(letter.fingerprint)
    return task_id


async def fail_again(harness):
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))


async def change(harness, script, *values):
    await harness.engine.database.fetch(script, *values)


async def first(harness, task_id):
    return (await harness.letters(task_id))[0]


async def test_s2_no_letters_are_nothing_to_do(harness):
    assert await harness.sweep_once() == 0


async def test_s2_an_open_letter_is_not_a_candidate(harness):
    await a.a_failed_task(harness)
    assert await harness.sweep_once() == 0


async def test_s2_the_first_dispatch_is_immediate(harness):
    task_id = await a_requested_letter(harness)
    assert await harness.sweep_once() == 1
    letter = await first(harness, task_id)
    assert (letter.state, letter.dispatches, letter.backoff_seconds) == ("retrying", 1, 2.0)
    assert letter.actor == "holdfast:dead-letter-dispatcher"
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation, seen.retry_count) == ("queued", 2, 0)


async def test_s2_a_letter_without_the_retry_option_is_left(harness):
    task_id = await a_requested_letter(harness)
    await change(harness, "update holdfast.dead_letter set recovery_options = '{ignore}'")
    assert await harness.sweep_once() == 0
    assert (await first(harness, task_id)).state == "retry_requested"


@pytest.mark.breaks_invariants
async def test_s2_a_letter_whose_run_is_gone_is_left(harness):
    task_id = await a_requested_letter(harness)
    await change(harness, "delete from holdfast.ended where task_id = $1", int(task_id))
    assert await harness.sweep_once() == 0
    assert (await first(harness, task_id)).state == "retry_requested"


@pytest.mark.breaks_invariants
async def test_s2_another_tenants_letter_never_drives_this_run(harness):
    task_id = await a_requested_letter(harness)
    await change(harness, "insert into holdfast.tenant (tenant_id, name) values (2, 'other')")
    await change(harness, "update holdfast.dead_letter set tenant_id = 2")
    assert await harness.sweep_once() == 0
    assert (await harness.task(task_id)).state == "failed"


async def test_s2_superseded_by_a_success_is_resolved_and_counted(harness):
    """As when the success was settled without updating its letter."""
    task_id = await a_requested_letter(harness)
    await harness.sweep_once()
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    await change(harness, "update holdfast.dead_letter set state = 'retrying', disposition = 'x'")
    assert await repair_letters_once(harness.engine.database) == 1
    assert [await harness.sweep_once() for _ in range(2)] == [1, 0]
    letter = await first(harness, task_id)
    assert (letter.state, letter.disposition) == ("resolved", "retry_succeeded")
    assert letter.actor == "holdfast:dead-letter-dispatcher"


async def test_s2_five_dispatches_and_no_more(harness, clock):
    """The fifth is followed by the end: parked, counted, and never dispatched again."""
    task_id = await a_requested_letter(harness)
    acted = []
    for _ in range(DISPATCHES_MAX):
        acted.append(await harness.sweep_once())
        await fail_again(harness)
        await clock.advance(seconds=300)
    assert acted == [1] * DISPATCHES_MAX
    assert [await harness.sweep_once() for _ in range(2)] == [1, 0]
    letter = await first(harness, task_id)
    assert (letter.state, letter.disposition, letter.dispatches) == ("ignored", "retry_exhausted", 5)
    assert "after 5 dispatches" in letter.disposition_reason
    assert (await harness.task(task_id)).attempt == 1 + DISPATCHES_MAX


async def test_s2_exhausted_comes_before_the_state_of_the_run(harness):
    task_id = await a_requested_letter(harness)
    await change(harness, "update holdfast.dead_letter set dispatches = 4")
    assert await harness.sweep_once() == 1
    assert (await harness.task(task_id)).state == "queued"
    assert await harness.sweep_once() == 1
    assert (await first(harness, task_id)).disposition == "retry_exhausted"


async def test_s2_dispatches_are_counted_apart_from_attempts(harness, clock):
    """A letter born at a high attempt is not exhausted by birth."""
    lease = await a.a_running_task(harness, max_retries=8, base_backoff_secs=0)
    for _ in range(8):
        await harness.settle(lease, Failed(a.a_failure()))
        lease = await harness.claim_one()
    await harness.settle(lease, Failed(a.a_failure()))
    letter = await first(harness, lease.task_id)
    assert (letter.attempts, letter.dispatches) == (9, 0)
    await harness.request(letter.fingerprint)
    assert await harness.sweep_once() == 1


async def test_s2_an_active_run_is_left(harness):
    task_id = await a_requested_letter(harness)
    await harness.redrive(task_id)
    await change(
        harness, "update holdfast.dead_letter set state = 'retry_requested', wants_sweep = true, dispatches = 0"
    )
    assert await harness.sweep_once() == 0


async def test_s2_a_canceled_run_is_left(harness, clock):
    task_id = await a_requested_letter(harness)
    await harness.sweep_once()
    await harness.cancel(task_id)
    await change(harness, "update holdfast.dead_letter set wants_sweep = true")
    await clock.advance(seconds=300)
    assert await harness.sweep_once() == 0
    assert (await first(harness, task_id)).state == "retrying"


async def test_a_letter_whose_task_was_canceled_is_parked(harness, clock):
    """The sweep leaves it; nothing will be tried for it any more, and it keeps no history from going."""
    task_id = await a_requested_letter(harness)
    await harness.sweep_once()
    await harness.cancel(task_id)
    await clock.advance("1h")
    assert [one.name for one in (await verify(harness.engine.database)).warnings] == [
        "requested_dead_letters_are_dispatched"
    ]
    assert [await repair_letters_once(harness.engine.database) for _ in range(2)] == [1, 0]
    letter = await first(harness, task_id)
    assert (letter.state, letter.disposition) == ("ignored", "retry_failed")


async def test_s2_a_re_drive_by_an_operator_is_the_first_of_five_dispatches(harness, clock):
    stopped = Failed(a.a_failure("validation: no such order"))
    lease = await a.a_running_task(harness)
    await harness.settle(lease, stopped)
    await harness.redrive(lease.task_id)
    acted = []
    for _ in range(DISPATCHES_MAX):
        await harness.settle(await harness.claim_one(), stopped)
        await clock.advance(seconds=300)
        acted.append(await harness.sweep_once())
    letter = await first(harness, lease.task_id)
    assert (acted, letter.dispatches, letter.disposition) == ([1] * DISPATCHES_MAX, DISPATCHES_MAX, "retry_exhausted")
    assert (await harness.task(lease.task_id)).attempt == 1 + DISPATCHES_MAX


async def test_s2_inside_its_backoff_a_letter_is_left_and_then_due(harness, clock):
    task_id = await a_requested_letter(harness)
    await clock.freeze()
    for dispatches in range(1, DISPATCHES_MAX):
        assert await harness.sweep_once() == 1
        await fail_again(harness)
        await clock.advance(seconds=2**dispatches - 0.01)
        assert await harness.sweep_once() == 0
        await clock.advance(seconds=0.02)
    assert (await first(harness, task_id)).dispatches == DISPATCHES_MAX - 1


async def test_s2_a_task_is_requeued_once_and_all_its_due_letters_are_counted(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await fail_again(harness)
    await change(
        harness,
        "update holdfast.dead_letter set state = 'retry_requested', wants_sweep = true, dispatched_at = null,"
        " disposition = 'x', actor = 'x'",
    )
    assert await harness.sweep_once() == 2
    assert [one.dispatches for one in await harness.letters(task_id)] == [2, 1]
    assert (await harness.task(task_id)).generation == 3


async def test_an_operator_takes_up_a_parked_letter_and_its_count_begins_anew(harness, clock):
    task_id = await a_requested_letter(harness)
    for _ in range(DISPATCHES_MAX):
        await harness.sweep_once()
        await fail_again(harness)
        await clock.advance(seconds=300)
    await harness.sweep_once()
    parked = await first(harness, task_id)
    await change(harness, "delete from holdfast.dead_letter where dead_letter_id > $1", int(parked.dead_letter_id))
    await harness.redrive(task_id)
    letter = await first(harness, task_id)
    assert (letter.state, letter.dispatches, letter.actor) == ("retrying", 1, "test")


async def test_two_dispatchers_sweeping_at_once_do_what_one_does(harness):
    tasks = [await a_requested_letter(harness) for _ in range(20)]
    engine = harness.engine
    swept = await asyncio.gather(*(sweep_once(engine.database, engine.catalog) for _ in range(6)))
    assert sum(one.count for one in swept) == len(tasks)
    for task_id in tasks:
        assert (await first(harness, task_id)).dispatches == 1
        assert (await harness.task(task_id)).generation == 2


async def test_a_sweep_goes_on_where_a_page_ended(harness):
    for _ in range(3):
        await a_requested_letter(harness)
    engine = harness.engine
    page = await sweep_once(engine.database, engine.catalog, limit=2)
    rest = await sweep_once(engine.database, engine.catalog, after=page.after, limit=2)
    assert (page.count, page.after > 0, rest.count, rest.after) == (2, True, 1, 0)


async def test_letters_that_must_wait_do_not_hold_up_those_behind(harness):
    waiting = await a_requested_letter(harness)
    await change(harness, "update holdfast.dead_letter set recovery_options = '{ignore}'")
    await a_requested_letter(harness)
    engine = harness.engine
    page = await sweep_once(engine.database, engine.catalog, limit=1)
    assert page.count == 0
    assert (await sweep_once(engine.database, engine.catalog, after=page.after, limit=1)).count == 1
    assert (await first(harness, waiting)).state == "retry_requested"


@pytest.mark.parametrize("rival", ["success", "cancel", "redrive"])
async def test_a_sweep_that_comes_second_finds_the_task_no_longer_failed(harness, rival):
    """One after the other; both at once are in test_redrive_races.py."""
    task_id = await a_requested_letter(harness)
    await harness.redrive(task_id)
    if rival == "success":
        await harness.settle(await harness.claim_one(), Completed(b"1"))
    elif rival == "cancel":
        await harness.cancel(task_id)
    assert await harness.sweep_once() == 0
    assert (await harness.task(task_id)).generation == 2


async def test_a_sweep_racing_an_operator_requeues_once(harness):
    engine = harness.engine
    for _ in range(5):
        task_id = await a_requested_letter(harness)
        swept, redriven = await asyncio.gather(
            sweep_once(engine.database, engine.catalog), harness.redrive(task_id), return_exceptions=True
        )
        assert (await harness.task(task_id)).generation == 2
        assert (swept.count == 1) == isinstance(redriven, Exception)
        await harness.settle(await harness.claim_one(), Completed(b"1"))
