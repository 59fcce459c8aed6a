"""The schema itself refuses the worst states, whoever writes them."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast.testing.factories import a_running_task, a_task

QUEUED = "update holdfast.live set {} where state = 'q'"
RUNNING = "update holdfast.live set {} where state = 'r'"


async def test_a_queued_task_cannot_become(harness, subtests):
    cases = [
        "retries = max_retries + 1",
        "losses = max_losses + 1",
        "state = 'z'",
        "state = 'r'",
        "state = 'v'",
        "lease_token = gen_random_uuid()",
        "worker_id = 1",
        "state = 'w'",
        "due_at = now()",
        "is_retrying = true",
        "run_id = 1",
        "node_no = 1",
    ]
    for change in cases:
        with subtests.test(change=change):
            await harness.enqueue(a_task())
            with pytest.raises(asyncpg.CheckViolationError, match="live_invalid_rows"):
                await harness.engine.database.fetch(QUEUED.format(change))


async def test_a_running_task_cannot_become(harness, subtests):
    for change in ["lease_token = null", "worker_id = null", "due_at = now()", "state = 'q'", "state = 'v'"]:
        with subtests.test(change=change):
            await a_running_task(harness)
            with pytest.raises(asyncpg.CheckViolationError, match="live_invalid_rows"):
                await harness.engine.database.fetch(RUNNING.format(change))


async def test_a_task_cannot_begin_unsound(harness):
    await harness.enqueue(a_task())
    with pytest.raises(asyncpg.CheckViolationError, match="live_invalid_rows"):
        await harness.engine.database.fetch(
            "insert into holdfast.live"
            " (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state)"
            " select task_id + 1, tenant_id, lane_id, policy_id, 0, 0, 5, 'w' from holdfast.live"
        )


async def test_a_task_cannot_be_live_twice(harness):
    await harness.enqueue(a_task())
    with pytest.raises(asyncpg.UniqueViolationError):
        await harness.engine.database.fetch("insert into holdfast.live select * from holdfast.live")


async def test_an_attempt_cannot_be_recorded_twice(harness):
    with pytest.raises(asyncpg.UniqueViolationError):
        await harness.engine.database.fetch(
            "insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)"
            " select 1, now(), now(), 1, 1, 'c', gen_random_uuid() from generate_series(1, 2)"
        )


async def test_a_paused_queue_names_who_paused_it(harness):
    await harness.enqueue(a_task())
    with pytest.raises(asyncpg.CheckViolationError):
        await harness.engine.database.fetch("update holdfast.queue set paused_at = now()")


async def test_an_idempotency_key_is_not_empty(harness):
    with pytest.raises(asyncpg.CheckViolationError):
        await harness.engine.database.fetch(
            "insert into holdfast.idempotency (tenant_id, key, task_id, digest) values (1, '', 1, '')"
        )
