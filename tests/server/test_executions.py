"""An operator's retry at the addresses that dashboards know: each answer, and in which order they come."""

from __future__ import annotations

import asyncio

import pytest
from asyncpg import ConnectionDoesNotExistError
from tests.core.flows import a_flow

from holdfast.core.tasks.outcome import Failed
from holdfast.engine.audit import list_audit
from holdfast.errors import Unavailable
from holdfast.server.auth.caller import Access, Caller
from holdfast.settings.settings import AuthSettings
from holdfast.testing.factories import (
    a_canceled_task,
    a_completed_task,
    a_delayed_task,
    a_failed_task,
    a_failure,
    a_retrying_task,
    a_running_task,
    a_task,
)

PATHS = ["/dashboard/executions/{}/retry", "/api/v1/executions/{}/retry"]
REFUSING = """
create function holdfast.refuse() returns trigger language plpgsql as
  $$ begin raise exception 'not while the auditors are here'; end $$;
create trigger refuse before insert on holdfast.live for each row execute function holdfast.refuse();
"""

pytestmark = pytest.mark.parametrize("path", PATHS, ids=["dashboard", "api"])


async def a_retryable_task(harness) -> str:
    """Failed for good with budget left: what was wrong is no matter for a retry."""
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure("validation: no such order")))
    return lease.task_id


async def test_401_dashboard_unauthorized_if_nobody_known_asks(call, path):
    answer = await call.post(path.format(999), x_dev_user=None)
    assert (answer.status, answer.json["code"]) == (401, "dashboard_unauthorized")


async def test_403_without_the_operator_role_even_for_an_execution_that_is_not_there(call, path, monkeypatch):
    viewer = Caller(actor="vera", tenant_id=1, may=frozenset({Access.VIEWER}))

    async def known(*_):
        return viewer

    monkeypatch.setattr("holdfast.server.auth.authenticator.Authenticator.caller", known)
    answer = await call.post(path.format(999))
    assert (answer.status, answer.json["code"]) == (403, "forbidden")


async def test_404_execution_not_found_if_no_execution_exists(call, path, subtests):
    for task_id in ["999", "abc", "1" * 30]:
        with subtests.test(task_id=task_id):
            answer = await call.post(path.format(task_id))
            assert (answer.status, answer.json["code"]) == (404, "execution_not_found")


async def enqueued(harness, draft) -> str:
    return (await harness.enqueue(draft)).task_id


async def running(harness) -> str:
    return (await a_running_task(harness)).task_id


async def behind_a_failed_node(harness) -> str:
    """A node without a task of its own."""
    flow = a_flow("a>b")
    run_id = await harness.runs.start(flow)
    await harness.settle(await harness.claim_one(), Failed(a_failure()))
    return harness.runs.task_id(run_id, flow, "b")


async def failed_in_a_canceled_run(harness) -> str:
    run_id = await harness.runs.start(a_flow(alone=("a", "b")))
    lease = await harness.claim_one()
    await harness.settle(lease, Failed(a_failure()))
    await harness.runs.cancel(run_id)
    return lease.task_id


@pytest.mark.parametrize(
    ("status", "make"),
    [
        ("queued", lambda harness: enqueued(harness, a_task())),
        ("queued", lambda harness: enqueued(harness, a_delayed_task())),
        ("running", running),
        ("completed", a_completed_task),
        ("canceled", a_canceled_task),
        ("upstream_failed", behind_a_failed_node),
        ("canceled", failed_in_a_canceled_run),
    ],
    ids=["queued", "delayed", "running", "completed", "canceled", "upstream_failed", "run canceled"],
)
async def test_409_cannot_retry_execution_in_status(call, harness, path, status, make):
    answer = await call.post(path.format(await make(harness)))
    assert (answer.status, answer.json["code"]) == (409, "execution_not_retryable")
    assert answer.json["detail"] == f"cannot retry execution in status '{status}'"


async def test_409_retry_budget_exhausted_names_the_dead_letter(call, harness, path):
    task_id = await a_failed_task(harness)
    [letter] = await harness.letters(task_id)
    answer = await call.post(path.format(task_id))
    assert (answer.status, answer.json["code"]) == (409, "retry_budget_exhausted")
    assert (answer.json["detail"], answer.json["dead_letter_id"]) == ("retry budget exhausted", letter.dead_letter_id)


async def test_202_with_exactly_task_id_attempt_and_status(call, harness, path, engine):
    task_id = await a_retryable_task(harness)
    answer = await call.post(path.format(task_id), {"reason": "the order is there now"})
    assert (answer.status, answer.json) == (202, {"taskId": task_id, "attempt": 2, "status": "queued"})
    (row,) = await list_audit(engine.database, 1)
    assert (row.actor, row.verb, row.reason) == ("dev:anna", "task.retry", "the order is there now")


async def test_202_again_for_the_same_key_and_one_retry(call, harness, path):
    task_id = await a_retryable_task(harness)
    answers = [await call.post(path.format(task_id), idempotency_key="k") for _ in range(2)]
    assert [(one.status, one.json) for one in answers] == [(202, answers[0].json)] * 2
    assert (await call.post(path.format(task_id))).status == 409


async def test_a_retry_that_waits_is_run_now(call, harness, path):
    task_id = await a_retrying_task(harness)
    answer = await call.post(path.format(task_id))
    assert (answer.status, answer.json) == (202, {"taskId": task_id, "attempt": 2, "status": "queued"})


async def test_two_at_once_are_one_202_and_one_409(call, harness, path):
    task_id = await a_retryable_task(harness)
    answers = await asyncio.gather(*(call.post(path.format(task_id)) for _ in range(2)))
    assert sorted(answer.status for answer in answers) == [202, 409]


async def test_502_if_the_store_cannot_be_read(call, harness, path, monkeypatch):
    async def away(*_args, **_kwargs):
        raise Unavailable("The database is not available.")

    task_id = await a_retryable_task(harness)
    monkeypatch.setattr("holdfast.engine.lifecycle.tasks.retry.retry", away)
    answer = await call.post(path.format(task_id))
    assert (answer.status, answer.json["code"]) == (502, "store_unreadable")


async def test_502_if_the_database_fails_the_retry_and_503_with_its_code_elsewhere(call, harness, path):
    task_id = await a_retryable_task(harness)
    async with harness.engine.database.session() as session:
        await session.execute(REFUSING)
    answer = await call.post(path.format(task_id))
    assert (answer.status, answer.json["code"]) == (502, "store_unreadable")
    answer = await call.post(f"/api/v1/tasks/{task_id}/retry")
    assert (answer.status, answer.json["category"]) == (503, "dispatch")
    assert answer.json["code"] == "DAG_DISPATCH_ENQUEUE_RETRY_FAILED"
    assert (await harness.task(task_id)).state == "failed"


async def test_502_also_if_the_callers_token_cannot_be_looked_up(call, harness, path, token, ticks, monkeypatch):
    async def away(*_args, **_kwargs):
        raise ConnectionDoesNotExistError("connection was closed in the middle of operation")

    asked, task_id = call.bearing(await token("operator")), await a_retryable_task(harness)
    assert (await asked.get("/api/v1/tasks")).status == 200
    monkeypatch.setattr("holdfast.server.auth.authenticator.find_bearer", away)
    ticks.advance(AuthSettings().token_cache_seconds)
    answer = await asked.post(path.format(task_id))
    assert (answer.status, answer.json["code"]) == (502, "store_unreadable")
    assert (await asked.get("/api/v1/tasks")).status == 503


async def test_it_only_queues_again_and_a_worker_claims_it_as_any_other(call, harness, path):
    task_id = await a_retryable_task(harness)
    await call.post(path.format(task_id))
    lease = await harness.claim_one()
    assert (lease.task_id, lease.attempt) == (task_id, 2)
