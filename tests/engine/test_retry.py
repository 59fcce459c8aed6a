"""An operator's retry: a waiting one now, a failed one while its budget lasts, anything else refused (S0)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.states import TaskState
from holdfast.engine.lifecycle.tasks.retry import retry
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.testing import factories as a


async def a_stopped_task(harness, **options):
    """A task that failed for good with retries left: nothing that could get better by itself."""
    lease = await a.a_running_task(harness, **options)
    await harness.settle(lease, Failed(a.a_failure("validation: no such order")))
    return lease.task_id


async def test_a_waiting_retry_runs_now(harness):
    task_id = await a.a_retrying_task(harness)
    assert await harness.retry(task_id) == 2
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation, seen.retry_count) == (TaskState.QUEUED, 1, 1)


async def test_a_failed_task_goes_on_in_its_generation_with_one_retry_more_spent(harness):
    task_id = await a_stopped_task(harness)
    assert await harness.retry(task_id) == 2
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation, seen.retry_count) == (TaskState.QUEUED, 1, 1)


async def test_s0_one_retry_is_one_attempt(harness, clock):
    """A validation failure that is retried by hand fails once more, and neither the sweep nor a retry follows."""
    task_id = await a_stopped_task(harness)
    await harness.retry(task_id, actor="dev:ann", reason="typo fixed")
    [letter] = await harness.letters(task_id)
    assert (letter.state, letter.disposition, letter.actor) == ("resolved", "superseded", "dev:ann")
    assert letter.disposition_reason == "superseded by attempt 2: typo fixed"
    await harness.settle(await harness.claim_one(), Failed(a.a_failure("validation: no such order")))
    for _ in range(8):
        await clock.advance(seconds=300)
        assert await harness.sweep_once() == 0
        await harness.reconcile_once()
    seen = await harness.task(task_id)
    assert (seen.state, seen.attempt) == (TaskState.FAILED, 2)
    first, second = sorted(await harness.letters(task_id), key=lambda letter: int(letter.dead_letter_id))
    assert (first.state, second.state, second.previous_id) == ("resolved", "open", first.dead_letter_id)


async def test_a_retry_stops_the_sweep_that_a_re_drive_began(harness, clock):
    task_id = await a_stopped_task(harness)
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Failed(a.a_failure("validation: no such order")))
    await harness.retry(task_id)
    assert {letter.state for letter in await harness.letters(task_id)} == {"resolved"}
    await harness.settle(await harness.claim_one(), Failed(a.a_failure("validation: no such order")))
    await clock.advance(seconds=300)
    assert await harness.sweep_once() == 0


async def test_s0_the_ceiling_counts_every_attempt_of_the_generation_whatever_its_class(harness, clock):
    """Of max_retries + 1 = 3 attempts one was lost and one was refused for good: one is left."""
    lease = await a.a_running_task(harness, max_retries=2, max_losses=1)
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    final = Failed(a.a_failure("validation: no such order"))
    await harness.settle(await harness.claim_one(), final)
    assert await harness.retry(lease.task_id) == 3
    await harness.settle(await harness.claim_one(), final)
    with pytest.raises(Conflict, match="retry budget exhausted"):
        await harness.retry(lease.task_id)
    assert await harness.redrive(lease.task_id) == 4
    assert (await harness.task(lease.task_id)).generation == 2
    await harness.settle(await harness.claim_one(), final)
    assert await harness.retry(lease.task_id) == 5, "a re-drive starts a new generation with a fresh ceiling"


async def test_a_retried_attempt_that_fails_in_passing_spends_the_rest_of_the_budget(harness):
    lease = await a.a_running_task(harness, max_retries=2, base_backoff_secs=0)
    await harness.settle(lease, Failed(a.a_failure("validation: no such order")))
    await harness.retry(lease.task_id)
    for expected in (TaskState.QUEUED, TaskState.FAILED):
        await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
        assert (await harness.task(lease.task_id)).state is expected


@pytest.mark.parametrize("dispatches", [1, 2, 5])
async def test_s2_a_re_drive_dispatches_as_often_as_asked(harness, clock, dispatches):
    task_id = await a_stopped_task(harness)
    await harness.redrive(task_id, dispatches=dispatches)
    went = 0
    while leases := await harness.claim(1):
        went += 1
        await harness.settle(leases[0], Failed(a.a_failure("validation: no such order")))
        await clock.advance(seconds=300)
        await harness.sweep_once()
    assert went == dispatches
    states = {letter.state for letter in await harness.letters(task_id)}
    assert "ignored" in states and "retrying" not in states


@pytest.mark.parametrize("dispatches", [0, 6, True])
async def test_a_number_of_dispatches_out_of_bounds_is_refused(harness, dispatches):
    task_id = await a_stopped_task(harness)
    with pytest.raises(Invalid, match="from 1 to 5"):
        await harness.redrive(task_id, dispatches=dispatches)


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_s0_a_spent_budget_is_refused_naming_the_letter(harness, retries):
    """S0: attempt <= MAX_RETRIES is retryable; the attempt after the last retry is not."""
    lease = await a.a_running_task(harness, max_retries=retries, base_backoff_secs=0)
    for _ in range(retries):
        await harness.settle(lease, Failed(a.a_failure()))
        lease = await harness.claim_one()
    await harness.settle(lease, Failed(a.a_failure()))
    [letter] = await harness.letters(lease.task_id)
    with pytest.raises(Conflict) as refused:
        await harness.retry(lease.task_id)
    assert (refused.value.code, refused.value.detail) == ("retry_budget_exhausted", "retry budget exhausted")
    assert refused.value.fields["dead_letter_id"] == letter.dead_letter_id
    assert (await harness.task(lease.task_id)).state == "failed"


async def test_a_re_drive_starts_a_generation_with_a_fresh_budget(harness):
    task_id = await a.a_failed_task(harness)
    assert await harness.redrive(task_id) == 2
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation, seen.retry_count) == (TaskState.QUEUED, 2, 0)


async def test_attempts_keep_counting_across_generations(harness):
    task_id = await a.a_failed_task(harness, input={"order": 7})
    await harness.redrive(task_id)
    lease = await harness.claim_one()
    assert (lease.attempt, lease.claimed.input) == (2, b'{"order":7}')
    await harness.settle(lease, Completed(b"1"))
    assert len(await harness.attempts(task_id)) == 2


async def test_a_new_generation_may_fail_for_good_again(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
    seen = await harness.task(task_id)
    assert (seen.state, seen.generation, seen.attempt) == (TaskState.FAILED, 2, 2)


@pytest.mark.parametrize("verb", ["retry", "redrive"])
async def test_of_two_at_once_one_is_applied(harness, verb):
    task_id = await a_stopped_task(harness)
    answers = await asyncio.gather(*(getattr(harness, verb)(task_id) for _ in range(6)), return_exceptions=True)
    assert [answer for answer in answers if answer == 2] == [2]
    assert len([answer for answer in answers if isinstance(answer, Conflict)]) == 5


@pytest.mark.parametrize("verb", ["retry", "redrive"])
@pytest.mark.parametrize(("stage", "status"), [("completed", "completed"), ("canceled", "canceled")])
async def test_a_task_that_ended_otherwise_is_refused(harness, stage, status, verb):
    task_id = await getattr(a, f"a_{stage}_task")(harness)
    with pytest.raises(Conflict, match=f"cannot retry execution in status '{status}'"):
        await getattr(harness, verb)(task_id)


async def test_a_queued_task_is_refused_not_unknown(harness):
    task = await harness.enqueue(a.a_task())
    with pytest.raises(Conflict, match="in status 'queued'") as refused:
        await harness.retry(task.task_id)
    assert refused.value.code == "execution_not_retryable"


async def test_a_running_task_is_refused(harness):
    lease = await a.a_running_task(harness)
    with pytest.raises(Conflict, match="in status 'running'"):
        await harness.retry(lease.task_id)


async def test_an_unknown_task_is_not_found(harness):
    with pytest.raises(NotFound) as unknown:
        await harness.retry("999")
    assert unknown.value.code == "execution_not_found"


@pytest.mark.parametrize("stage", ["failed", "completed"])
async def test_another_tenants_task_is_not_found(harness, stage):
    task_id = await getattr(a, f"a_{stage}_task")(harness)
    engine = harness.engine
    with pytest.raises(NotFound):
        await retry(engine.database, engine.catalog, 2, int(task_id), actor="eve", reason="")


async def test_s0_exact_attempts_a_late_report_never_ends_the_attempt_of_a_re_drive(harness):
    """Each report names its attempt; one that resolves the newest attempt by luck cannot exist."""
    lease = await a.a_running_task(harness, max_retries=0)
    await harness.settle(lease, Failed(a.a_failure()))
    await harness.redrive(lease.task_id)
    again = await harness.claim_one()
    await harness.settle(lease, Failed(a.a_failure()))
    assert (await harness.task(lease.task_id)).state == "running"
    with pytest.raises(Conflict):
        await harness.settle(lease, Completed(b"1"))
    await harness.settle(again, Completed(b"2"))
    assert [one.state for one in await harness.letters(lease.task_id)] == ["resolved"]
