"""Only the current attempt with the current token may say how it ended, and its decision is stored."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import msgspec
import pytest

from holdfast.core.tasks.failure import Failure, FailureReport
from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Released, TimedOut
from holdfast.core.tasks.states import AttemptState, TaskState
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import LeaseLost
from holdfast.testing.factories import a_failure, a_running_task

ENDS = [Completed(b"2"), Failed(a_failure()), Canceled(), Released()]


async def a_reaped_task(harness, clock, **options):
    """A lease that was lost, its task queued again."""
    lease = await a_running_task(harness, **options)
    await clock.advance(seconds=lease.seconds)
    await harness.reap_once()
    return lease


async def test_a_completed_task_has_its_output_and_no_live_row(harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Completed(b'{"paid":true}'))
    (attempt,) = await harness.attempts(lease.task_id)
    assert (await harness.task(lease.task_id)).state is TaskState.COMPLETED
    assert (attempt.state, attempt.output) == (AttemptState.COMPLETED, b'{"paid":true}')


@pytest.mark.parametrize("outcome", ENDS, ids=lambda outcome: type(outcome).__name__)
async def test_a_late_report_of_a_lost_attempt_changes_nothing(harness, clock, outcome):
    lease = await a_reaped_task(harness, clock)
    with pytest.raises(LeaseLost, match="attempt 1 is queued"):
        await harness.settle(lease, outcome)
    seen = await harness.task(lease.task_id)
    assert (seen.state, seen.attempt, seen.retry_count) == (TaskState.QUEUED, 1, 0)


async def test_a_stale_report_names_the_worker_that_holds_the_task_now(harness, clock):
    stale = await a_reaped_task(harness, clock)
    current = await harness.claim_one(worker="second")
    with pytest.raises(LeaseLost, match=f"attempt 2 is running by worker {current.worker_id}"):
        await harness.settle(stale, Completed(b"1"))


async def test_a_stale_report_after_the_winner_names_the_end(harness, clock):
    stale = await a_reaped_task(harness, clock)
    await harness.settle(await harness.claim_one(worker="second"), Completed(b"2"))
    with pytest.raises(LeaseLost, match="attempt 2 is completed"):
        await harness.settle(stale, Completed(b"1"))


async def test_a_report_with_a_made_up_token_is_refused(harness):
    lease = await a_running_task(harness)
    forged = msgspec.structs.replace(lease, claimed=msgspec.structs.replace(lease.claimed, lease_token=uuid.uuid4()))
    with pytest.raises(LeaseLost):
        await harness.settle(forged, Completed(b"1"))


async def test_a_report_for_another_attempt_is_refused(harness):
    lease = await a_running_task(harness)
    wrong = msgspec.structs.replace(lease, claimed=msgspec.structs.replace(lease.claimed, attempt=2))
    with pytest.raises(LeaseLost):
        await harness.settle(wrong, Completed(b"1"))


async def test_a_lease_that_expired_but_was_not_reaped_is_still_current(harness, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=lease.seconds + 60)
    await harness.settle(lease, Completed(b"1"))
    assert (await harness.task(lease.task_id)).state is TaskState.COMPLETED


@pytest.mark.parametrize("outcome", ENDS, ids=lambda outcome: type(outcome).__name__)
async def test_the_identical_report_repeated_answers_as_before(harness, outcome):
    lease = await a_running_task(harness)
    await harness.settle(lease, outcome)
    before = await harness.task(lease.task_id)
    await harness.settle(lease, outcome)
    assert await harness.task(lease.task_id) == before


async def test_another_end_for_a_settled_attempt_is_refused(harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Completed(b"1"))
    with pytest.raises(LeaseLost, match="attempt 1 is completed"):
        await harness.settle(lease, Failed(a_failure()))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Completed(b"1"), Completed(b"2")),
        (Failed(a_failure("one")), Failed(a_failure("two"))),
        (Failed(a_failure(code="ONE")), Failed(a_failure(code="TWO"))),
        (TimedOut(a_failure("one")), TimedOut(a_failure("two"))),
    ],
)
async def test_the_same_kind_of_end_in_other_words_is_refused(harness, first, second):
    lease = await a_running_task(harness)
    await harness.settle(lease, first)
    with pytest.raises(LeaseLost):
        await harness.settle(lease, second)


async def test_a_report_of_an_unknown_task_is_refused(harness):
    lease = await a_running_task(harness)
    unknown = msgspec.structs.replace(lease, claimed=msgspec.structs.replace(lease.claimed, task_id=999))
    with pytest.raises(LeaseLost, match="does not exist"):
        await harness.settle(unknown, Completed(b"1"))


async def test_of_two_reports_at_once_one_is_accepted(harness):
    lease = await a_running_task(harness)
    ends = [Completed(b"1"), Failed(a_failure())] * 5
    answers = await asyncio.gather(*(harness.settle(lease, end) for end in ends), return_exceptions=True)
    assert len([answer for answer in answers if answer is None]) == 5
    assert len(await harness.attempts(lease.task_id)) == 1


async def test_both_attempts_of_a_task_in_one_batch_are_told_apart(harness, clock):
    stale = await a_reaped_task(harness, clock)
    current = await harness.claim_one()
    reports = [report_of(stale.claimed, Lost(a_failure())), report_of(current.claimed, Failed(a_failure()))]
    async with harness.engine.database.transaction() as session:
        settled = await settle(session, harness.engine.catalog, reports)
    seen = await harness.task(stale.task_id)
    assert settled.accepted == 2  # the reaper had said the same of the first
    assert (seen.retry_count, seen.loss_count, seen.next_retry_at is not None) == (1, 1, True)


async def test_the_same_report_twice_in_one_batch_counts_once(harness):
    lease = await a_running_task(harness)
    report = report_of(lease.claimed, Failed(a_failure()))
    async with harness.engine.database.transaction() as session:
        settled = await settle(session, harness.engine.catalog, [report, report])
    assert (settled.accepted, (await harness.task(lease.task_id)).retry_count) == (2, 1)


async def test_a_mixed_batch_settles_each_task_by_its_own_outcome(harness):
    leases = [await a_running_task(harness) for _ in range(4)]
    reports = [report_of(lease.claimed, end) for lease, end in zip(leases, ENDS, strict=True)]
    async with harness.engine.database.transaction() as session:
        await settle(session, harness.engine.catalog, reports)
    states = [(await harness.task(lease.task_id)).state for lease in leases]
    assert states == [TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.QUEUED]


async def test_settling_and_beating_for_the_same_tasks_never_deadlock(harness):
    leases = [await a_running_task(harness) for _ in range(20)]
    reports = [report_of(lease.claimed, ENDS[number % 2]) for number, lease in enumerate(leases)]

    async def settle_all():
        async with harness.engine.database.transaction() as session:
            return await settle(session, harness.engine.catalog, reports)

    done = await asyncio.gather(settle_all(), *(harness.heartbeat(*leases) for _ in range(5)))
    assert done[0].accepted == 20


async def test_a_released_attempt_is_free_and_remembered(harness):
    lease = await a_running_task(harness, max_retries=0, max_losses=0)
    await harness.settle(lease, Released())
    seen = await harness.task(lease.task_id)
    assert (seen.state, seen.retry_count, seen.loss_count) == (TaskState.QUEUED, 0, 0)
    assert [attempt.state for attempt in await harness.attempts(lease.task_id)] == [AttemptState.RELEASED]


async def test_a_released_task_runs_again_as_the_next_attempt(harness):
    await harness.settle(await a_running_task(harness), Released())
    assert (await harness.claim_one()).attempt == 2


async def test_a_decision_to_retry_is_stored_with_its_reason_rule_and_time(harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure("connection reset by peer", type="ConnectionResetError")))
    (attempt,) = await harness.attempts(lease.task_id)
    assert (attempt.state, attempt.decision, attempt.reason) == (AttemptState.FAILED, "retry", "connection_error")
    assert attempt.rule and "Retry 1 of 3" in attempt.sentence
    assert (attempt.retry_at - attempt.ended_at).total_seconds() == pytest.approx(1)


async def test_a_decision_to_stop_is_stored_with_its_reason(harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure("permission denied")))
    (attempt,) = await harness.attempts(lease.task_id)
    assert (attempt.decision, attempt.retry_at) == ("stop", None)
    assert attempt.sentence.startswith("Stopped")


async def test_a_waiting_retry_is_shown_as_failed_until_its_time(harness, clock):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure()))
    seen = await harness.task(lease.task_id)
    assert seen.state is TaskState.FAILED and seen.next_retry_at is not None
    await clock.advance(seconds=1)
    await harness.reconcile_once()
    assert (await harness.task(lease.task_id)).state is TaskState.QUEUED


async def test_backoff_doubles_from_retry_to_retry(harness, clock):
    waits = []
    lease = await a_running_task(harness)
    for _ in range(3):
        await harness.settle(lease, Failed(a_failure()))
        last = (await harness.attempts(lease.task_id))[-1]
        waits.append(round((last.retry_at - last.ended_at).total_seconds()))
        await clock.advance(seconds=waits[-1])
        await harness.reconcile_once()
        lease = await harness.claim_one()
    assert waits == [1, 2, 4]


async def test_a_zero_delay_goes_straight_back_to_the_queue(harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure(said=FailureReport.RETRY, retry_after=timedelta(0))))
    assert (await harness.task(lease.task_id)).state is TaskState.QUEUED
    assert (await harness.claim_one()).attempt == 2


async def test_a_requested_delay_is_kept(harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure(said=FailureReport.RETRY, retry_after=timedelta(minutes=10))))
    (attempt,) = await harness.attempts(lease.task_id)
    assert (attempt.retry_at - attempt.ended_at) == timedelta(minutes=10)


async def test_the_retry_budget_ends_the_task(harness, clock):
    lease = await a_running_task(harness, max_retries=1)
    await harness.settle(lease, Failed(a_failure()))
    await clock.advance(seconds=1)
    await harness.reconcile_once()
    await harness.settle(await harness.claim_one(), Failed(a_failure()))
    seen = await harness.task(lease.task_id)
    assert (seen.state, seen.attempt, seen.retry_count) == (TaskState.FAILED, 2, 1)
    assert (await harness.attempts(lease.task_id))[-1].reason == "retries_exhausted"


async def test_failures_and_timeouts_share_one_budget(harness):
    lease = await a_running_task(harness, max_retries=1, base_backoff_secs=0)
    await harness.settle(lease, TimedOut(Failure(code="DAG_TASK_EXECUTION_TIMEOUT", message="timed out")))
    await harness.settle(await harness.claim_one(), Failed(a_failure()))
    states = [attempt.state for attempt in await harness.attempts(lease.task_id)]
    assert states == [AttemptState.TIMED_OUT, AttemptState.FAILED]
    assert (await harness.task(lease.task_id)).ended_at is not None


async def test_losses_leave_the_retry_budget_alone(harness, clock):
    lease = await a_reaped_task(harness, clock, max_retries=1, base_backoff_secs=0)
    await harness.settle(await harness.claim_one(), Failed(a_failure()))
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    assert (await harness.task(lease.task_id)).state is TaskState.COMPLETED
