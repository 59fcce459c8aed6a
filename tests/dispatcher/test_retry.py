"""An operator's retry: a waiting one now, a failed one as a new generation, anything else refused."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.outcome import Completed, Failed
from holdfast.core.states import TaskState
from holdfast.dispatcher import cancel as verb
from holdfast.errors import Conflict, NotFound
from holdfast.testing import factories as a


async def test_a_waiting_retry_runs_now(dispatcher):
    task_id = await a.a_retrying_task(dispatcher)
    assert await dispatcher.retry(task_id) == 2
    seen = await dispatcher.task(task_id)
    assert (seen.state, seen.generation, seen.retry_count) == (TaskState.QUEUED, 1, 1)


async def test_a_failed_task_begins_a_new_generation_with_a_fresh_budget(dispatcher):
    task_id = await a.a_failed_task(dispatcher)
    assert await dispatcher.retry(task_id) == 2
    seen = await dispatcher.task(task_id)
    assert (seen.state, seen.generation, seen.retry_count) == (TaskState.QUEUED, 2, 0)


async def test_attempts_keep_counting_across_generations(dispatcher):
    task_id = await a.a_failed_task(dispatcher, input={"order": 7})
    await dispatcher.retry(task_id)
    lease = await dispatcher.claim_one()
    assert (lease.attempt, lease.claimed.input) == (2, b'{"order":7}')
    await dispatcher.settle(lease, Completed(b"1"))
    assert len(await dispatcher.attempts(task_id)) == 2


async def test_a_new_generation_may_fail_for_good_again(dispatcher):
    task_id = await a.a_failed_task(dispatcher)
    await dispatcher.retry(task_id)
    await dispatcher.settle(await dispatcher.claim_one(), Failed(a.a_failure()))
    seen = await dispatcher.task(task_id)
    assert (seen.state, seen.generation, seen.attempt) == (TaskState.FAILED, 2, 2)


async def test_of_two_retries_at_once_one_is_applied(dispatcher):
    task_id = await a.a_failed_task(dispatcher)
    answers = await asyncio.gather(*(dispatcher.retry(task_id) for _ in range(6)), return_exceptions=True)
    assert [answer for answer in answers if answer == 2] == [2]
    assert len([answer for answer in answers if isinstance(answer, Conflict)]) == 5


@pytest.mark.parametrize(("stage", "status"), [("completed", "completed"), ("canceled", "canceled")])
async def test_a_task_that_ended_otherwise_is_refused(dispatcher, stage, status):
    task_id = await getattr(a, f"a_{stage}_task")(dispatcher)
    with pytest.raises(Conflict, match=f"cannot retry execution in status '{status}'"):
        await dispatcher.retry(task_id)


async def test_a_queued_task_is_refused_not_unknown(dispatcher):
    task = await dispatcher.enqueue(a.a_task())
    with pytest.raises(Conflict, match="in status 'queued'"):
        await dispatcher.retry(task.task_id)


async def test_a_running_task_is_refused(dispatcher):
    lease = await a.a_running_task(dispatcher)
    with pytest.raises(Conflict, match="in status 'running'"):
        await dispatcher.retry(lease.task_id)


async def test_an_unknown_task_is_not_found(dispatcher):
    with pytest.raises(NotFound):
        await dispatcher.retry("999")


@pytest.mark.parametrize("stage", ["failed", "completed"])
async def test_another_tenants_task_is_not_found(dispatcher, stage):
    task_id = await getattr(a, f"a_{stage}_task")(dispatcher)
    with pytest.raises(NotFound):
        await verb.retry(dispatcher.engine.database, 2, int(task_id), actor="eve", reason="")
