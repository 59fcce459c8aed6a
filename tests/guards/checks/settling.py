"""What guards a result: attempt, token, state and the lock under them."""

from __future__ import annotations

import asyncio
import uuid

from tests.guards.checks.stage import (
    Stage,
    check,
    forged,
    handed_over,
    refuses,
    reserved,
)

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.cancel import cancel_in
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.store.statements import sql
from holdfast.testing.factories import (
    a_failure,
    a_running_task,
)


@check
async def a_report_must_name_the_current_attempt(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    for outcome in (Completed(b"1"), Failed(a_failure())):
        with refuses():
            await stage.harness.settle(forged(lease, attempt=lease.attempt + 1), outcome)
    assert await stage.state(lease.task_id) == "running"


@check
async def a_report_must_carry_the_current_token(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    for outcome in (Completed(b"1"), Failed(a_failure())):
        with refuses():
            await stage.harness.settle(forged(lease, lease_token=uuid.uuid4()), outcome)
    assert await stage.state(lease.task_id) == "running"


@check
async def a_reservation_cannot_be_completed(stage: Stage) -> None:
    """Code that never attached has no result to give."""
    lease = await a_running_task(stage.harness)
    reservation = await reserved(stage)
    unattached = forged(
        lease,
        task_id=reservation.task_id,
        attempt=reservation.attempt,
        lease_token=reservation.lease_token,
    )
    with refuses():
        await stage.harness.settle(unattached, Completed(b"1"))


@check
async def a_completion_that_waited_cannot_end_the_next_attempt(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with handed_over(stage, lease):
        late = asyncio.ensure_future(stage.harness.settle(lease, Completed(b'"late"')))
        await stage.waits(late)
    with refuses():
        await late
    assert (await stage.harness.task(lease.task_id)).attempt == 2
    assert await stage.state(lease.task_id) == "running"


@check
async def a_failure_that_waited_cannot_end_the_next_attempt(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with handed_over(stage, lease):
        late = asyncio.ensure_future(stage.harness.settle(lease, Failed(a_failure("validation: late"))))
        await stage.waits(late)
    with refuses():
        await late
    assert await stage.state(lease.task_id) == "running"


@check
async def a_requested_cancel_wins_over_a_retry(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.harness.cancel(lease.task_id)
    await stage.harness.settle(lease, Failed(a_failure()))
    assert await stage.state(lease.task_id) == "canceled"


@check
async def a_repeated_report_answers_as_before_and_only_its_own(stage: Stage) -> None:
    done, failed = await a_running_task(stage.harness), await a_running_task(stage.harness, max_retries=0)
    for lease, outcome in ((done, Completed(b"1")), (failed, Failed(a_failure()))):
        await stage.harness.settle(lease, outcome)
        await stage.harness.settle(lease, outcome)
        for change in ({"lease_token": uuid.uuid4()}, {"attempt": 2}):
            with refuses():
                await stage.harness.settle(forged(lease, **change), outcome)
    with refuses():
        await stage.harness.settle(done, Failed(a_failure()))


@check
async def a_repeated_report_that_says_something_else_is_refused(stage: Stage) -> None:
    done, failed = await a_running_task(stage.harness), await a_running_task(stage.harness, max_retries=0)
    await stage.harness.settle(done, Completed(b"1"))
    await stage.harness.settle(failed, Failed(a_failure("first")))
    for lease, outcome in ((done, Completed(b"2")), (failed, Failed(a_failure("second")))):
        with refuses():
            await stage.harness.settle(lease, outcome)


@check
async def a_mixed_batch_and_a_cancel_do_not_lock_each_other_out(stage: Stage) -> None:
    """The cancel locks in order of ids; so must the two statements of a batch together."""
    first, second = await a_running_task(stage.harness), await a_running_task(stage.harness)
    ids = [second.claimed.task_id, first.claimed.task_id]
    async with stage.impatient() as session, stage.impatient() as operator:
        async with session.transaction():
            await session.fetch(sql("lock_tasks"), ids)
            await settle(session, stage.engine.catalog, [report_of(second.claimed, Completed(b"1"))])
            await operator.execute("set lock_timeout = '5s'")
            how = {"grace_seconds": 10, "reason": "", "actor": "ann"}
            canceling = asyncio.ensure_future(cancel_in(operator, stage.engine.catalog, 1, sorted(ids), **how))
            await stage.waits(canceling)
            await settle(session, stage.engine.catalog, [report_of(first.claimed, Failed(a_failure()))])
        assert (await canceling).states == {first.claimed.task_id: "canceled"}
