"""The sweep, branch by branch, in the order and with the counts of S2. A plain task counts as its own run."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.lifecycle.dead_letters.sweep import repair_letters_once, sweep_once
from holdfast.engine.queries.verify import verify
from holdfast.testing import factories as a


async def a_requested_letter(dispatcher, **options):
    """A failed task whose retry somebody asked for."""
    task_id = await a.a_failed_task(dispatcher, **options)
    [letter] = await dispatcher.letters(task_id)
    await dispatcher.request(letter.fingerprint)
    return task_id


async def fail_again(dispatcher):
    await dispatcher.settle(await dispatcher.claim_one(), Failed(a.a_failure()))


async def change(dispatcher, script, *values):
    await dispatcher.engine.database.fetch(script, *values)


async def first(dispatcher, task_id):
    return (await dispatcher.letters(task_id))[0]


async def test_s2_no_letters_are_nothing_to_do(dispatcher):
    assert await dispatcher.sweep_once() == 0


async def test_s2_an_open_letter_is_not_a_candidate(dispatcher):
    await a.a_failed_task(dispatcher)
    assert await dispatcher.sweep_once() == 0


async def test_s2_the_first_dispatch_is_immediate(dispatcher):
    task_id = await a_requested_letter(dispatcher)
    assert await dispatcher.sweep_once() == 1
    letter = await first(dispatcher, task_id)
    assert (letter.state, letter.dispatches, letter.backoff_seconds) == ("retrying", 1, 2.0)
    assert letter.actor == "holdfast:dead-letter-dispatcher"
    seen = await dispatcher.task(task_id)
    assert (seen.state, seen.generation, seen.retry_count) == ("queued", 2, 0)


async def test_s2_a_letter_without_the_retry_option_is_left(dispatcher):
    task_id = await a_requested_letter(dispatcher)
    await change(dispatcher, "update holdfast.dead_letter set recovery_options = '{ignore}'")
    assert await dispatcher.sweep_once() == 0
    assert (await first(dispatcher, task_id)).state == "retry_requested"


@pytest.mark.breaks_invariants
async def test_s2_a_letter_whose_run_is_gone_is_left(dispatcher):
    task_id = await a_requested_letter(dispatcher)
    await change(dispatcher, "delete from holdfast.ended where task_id = $1", int(task_id))
    assert await dispatcher.sweep_once() == 0
    assert (await first(dispatcher, task_id)).state == "retry_requested"


@pytest.mark.breaks_invariants
async def test_s2_another_tenants_letter_never_drives_this_run(dispatcher):
    task_id = await a_requested_letter(dispatcher)
    await change(dispatcher, "insert into holdfast.tenant (tenant_id, name) values (2, 'other')")
    await change(dispatcher, "update holdfast.dead_letter set tenant_id = 2")
    assert await dispatcher.sweep_once() == 0
    assert (await dispatcher.task(task_id)).state == "failed"


async def test_s2_superseded_by_a_success_is_resolved_and_counted(dispatcher):
    """As when the success was settled without updating its letter."""
    task_id = await a_requested_letter(dispatcher)
    await dispatcher.sweep_once()
    await dispatcher.settle(await dispatcher.claim_one(), Completed(b"1"))
    await change(dispatcher, "update holdfast.dead_letter set state = 'retrying', disposition = 'x'")
    assert await repair_letters_once(dispatcher.engine.database) == 1
    assert [await dispatcher.sweep_once() for _ in range(2)] == [1, 0]
    letter = await first(dispatcher, task_id)
    assert (letter.state, letter.disposition) == ("resolved", "retry_succeeded")
    assert letter.actor == "holdfast:dead-letter-dispatcher"


async def test_s2_five_dispatches_and_no_more(dispatcher, clock):
    """The fifth is followed by the end: parked, counted, and never dispatched again."""
    task_id = await a_requested_letter(dispatcher)
    acted = []
    for _ in range(DISPATCHES_MAX):
        acted.append(await dispatcher.sweep_once())
        await fail_again(dispatcher)
        await clock.advance(seconds=300)
    assert acted == [1] * DISPATCHES_MAX
    assert [await dispatcher.sweep_once() for _ in range(2)] == [1, 0]
    letter = await first(dispatcher, task_id)
    assert (letter.state, letter.disposition, letter.dispatches) == ("ignored", "retry_exhausted", 5)
    assert "after 5 dispatches" in letter.disposition_reason
    assert (await dispatcher.task(task_id)).attempt == 1 + DISPATCHES_MAX


async def test_s2_exhausted_comes_before_the_state_of_the_run(dispatcher):
    task_id = await a_requested_letter(dispatcher)
    await change(dispatcher, "update holdfast.dead_letter set dispatches = 4")
    assert await dispatcher.sweep_once() == 1
    assert (await dispatcher.task(task_id)).state == "queued"
    assert await dispatcher.sweep_once() == 1
    assert (await first(dispatcher, task_id)).disposition == "retry_exhausted"


async def test_s2_dispatches_are_counted_apart_from_attempts(dispatcher, clock):
    """A letter born at a high attempt is not exhausted by birth."""
    lease = await a.a_running_task(dispatcher, max_retries=8, base_backoff_secs=0)
    for _ in range(8):
        await dispatcher.settle(lease, Failed(a.a_failure()))
        lease = await dispatcher.claim_one()
    await dispatcher.settle(lease, Failed(a.a_failure()))
    letter = await first(dispatcher, lease.task_id)
    assert (letter.attempts, letter.dispatches) == (9, 0)
    await dispatcher.request(letter.fingerprint)
    assert await dispatcher.sweep_once() == 1


async def test_s2_an_active_run_is_left(dispatcher):
    task_id = await a_requested_letter(dispatcher)
    await dispatcher.redrive(task_id)
    await change(
        dispatcher, "update holdfast.dead_letter set state = 'retry_requested', wants_sweep = true, dispatches = 0"
    )
    assert await dispatcher.sweep_once() == 0


async def test_s2_a_canceled_run_is_left(dispatcher, clock):
    task_id = await a_requested_letter(dispatcher)
    await dispatcher.sweep_once()
    await dispatcher.cancel(task_id)
    await change(dispatcher, "update holdfast.dead_letter set wants_sweep = true")
    await clock.advance(seconds=300)
    assert await dispatcher.sweep_once() == 0
    assert (await first(dispatcher, task_id)).state == "retrying"


async def test_a_letter_whose_task_was_canceled_is_parked(dispatcher, clock):
    """The sweep leaves it; nothing will be tried for it any more, and it keeps no history from going."""
    task_id = await a_requested_letter(dispatcher)
    await dispatcher.sweep_once()
    await dispatcher.cancel(task_id)
    await clock.advance("1h")
    assert [one.name for one in (await verify(dispatcher.engine.database)).warnings] == ["asked_letters_are_dispatched"]
    assert [await repair_letters_once(dispatcher.engine.database) for _ in range(2)] == [1, 0]
    letter = await first(dispatcher, task_id)
    assert (letter.state, letter.disposition) == ("ignored", "retry_failed")


async def test_s2_a_re_drive_by_an_operator_is_the_first_of_five_dispatches(dispatcher, clock):
    stopped = Failed(a.a_failure("validation: no such order"))
    lease = await a.a_running_task(dispatcher)
    await dispatcher.settle(lease, stopped)
    await dispatcher.redrive(lease.task_id)
    acted = []
    for _ in range(DISPATCHES_MAX):
        await dispatcher.settle(await dispatcher.claim_one(), stopped)
        await clock.advance(seconds=300)
        acted.append(await dispatcher.sweep_once())
    letter = await first(dispatcher, lease.task_id)
    assert (acted, letter.dispatches, letter.disposition) == ([1] * DISPATCHES_MAX, DISPATCHES_MAX, "retry_exhausted")
    assert (await dispatcher.task(lease.task_id)).attempt == 1 + DISPATCHES_MAX


async def test_s2_inside_its_backoff_a_letter_is_left_and_then_due(dispatcher, clock):
    task_id = await a_requested_letter(dispatcher)
    await clock.freeze()
    for dispatches in range(1, DISPATCHES_MAX):
        assert await dispatcher.sweep_once() == 1
        await fail_again(dispatcher)
        await clock.advance(seconds=2**dispatches - 0.01)
        assert await dispatcher.sweep_once() == 0
        await clock.advance(seconds=0.02)
    assert (await first(dispatcher, task_id)).dispatches == DISPATCHES_MAX - 1


async def test_s2_a_task_is_requeued_once_and_all_its_due_letters_are_counted(dispatcher):
    task_id = await a.a_failed_task(dispatcher)
    await dispatcher.redrive(task_id)
    await fail_again(dispatcher)
    await change(
        dispatcher,
        "update holdfast.dead_letter set state = 'retry_requested', wants_sweep = true, dispatched_at = null,"
        " disposition = 'x', actor = 'x'",
    )
    assert await dispatcher.sweep_once() == 2
    assert [one.dispatches for one in await dispatcher.letters(task_id)] == [2, 1]
    assert (await dispatcher.task(task_id)).generation == 3


async def test_an_operator_takes_up_a_parked_letter_and_its_count_begins_anew(dispatcher, clock):
    task_id = await a_requested_letter(dispatcher)
    for _ in range(DISPATCHES_MAX):
        await dispatcher.sweep_once()
        await fail_again(dispatcher)
        await clock.advance(seconds=300)
    await dispatcher.sweep_once()
    parked = await first(dispatcher, task_id)
    await change(dispatcher, "delete from holdfast.dead_letter where dead_letter_id > $1", int(parked.dead_letter_id))
    await dispatcher.redrive(task_id)
    letter = await first(dispatcher, task_id)
    assert (letter.state, letter.dispatches, letter.actor) == ("retrying", 1, "test")


async def test_two_dispatchers_sweeping_at_once_do_what_one_does(dispatcher):
    tasks = [await a_requested_letter(dispatcher) for _ in range(20)]
    engine = dispatcher.engine
    swept = await asyncio.gather(*(sweep_once(engine.database, engine.catalog) for _ in range(6)))
    assert sum(one.count for one in swept) == len(tasks)
    for task_id in tasks:
        assert (await first(dispatcher, task_id)).dispatches == 1
        assert (await dispatcher.task(task_id)).generation == 2


async def test_a_sweep_goes_on_where_a_page_ended(dispatcher):
    for _ in range(3):
        await a_requested_letter(dispatcher)
    engine = dispatcher.engine
    page = await sweep_once(engine.database, engine.catalog, limit=2)
    rest = await sweep_once(engine.database, engine.catalog, after=page.after, limit=2)
    assert (page.count, page.after > 0, rest.count, rest.after) == (2, True, 1, 0)


async def test_letters_that_must_wait_do_not_hold_up_those_behind(dispatcher):
    waiting = await a_requested_letter(dispatcher)
    await change(dispatcher, "update holdfast.dead_letter set recovery_options = '{ignore}'")
    await a_requested_letter(dispatcher)
    engine = dispatcher.engine
    page = await sweep_once(engine.database, engine.catalog, limit=1)
    assert page.count == 0
    assert (await sweep_once(engine.database, engine.catalog, after=page.after, limit=1)).count == 1
    assert (await first(dispatcher, waiting)).state == "retry_requested"


@pytest.mark.parametrize("rival", ["success", "cancel", "redrive"])
async def test_a_sweep_that_comes_second_finds_the_task_no_longer_failed(dispatcher, rival):
    """One after the other; both at once are in test_redrive_races.py."""
    task_id = await a_requested_letter(dispatcher)
    await dispatcher.redrive(task_id)
    if rival == "success":
        await dispatcher.settle(await dispatcher.claim_one(), Completed(b"1"))
    elif rival == "cancel":
        await dispatcher.cancel(task_id)
    assert await dispatcher.sweep_once() == 0
    assert (await dispatcher.task(task_id)).generation == 2


async def test_a_sweep_racing_an_operator_requeues_once(dispatcher):
    engine = dispatcher.engine
    for _ in range(5):
        task_id = await a_requested_letter(dispatcher)
        swept, redriven = await asyncio.gather(
            sweep_once(engine.database, engine.catalog), dispatcher.redrive(task_id), return_exceptions=True
        )
        assert (await dispatcher.task(task_id)).generation == 2
        assert (swept.count == 1) == isinstance(redriven, Exception)
        await dispatcher.settle(await dispatcher.claim_one(), Completed(b"1"))
