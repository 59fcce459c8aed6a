"""The schema itself refuses the worst states, whoever writes them."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast.testing.factories import a_running_task, a_task

QUEUED = "update holdfast.live set {} where state = 'q'"
RUNNING = "update holdfast.live set {} where state = 'r'"


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("retries = max_retries + 1", "live_budget"),
        ("losses = max_losses + 1", "live_budget"),
        ("state = 'z'", "live_state"),
        ("state = 'r'", "live_lease"),
        ("lease_token = gen_random_uuid()", "live_lease"),
        ("worker_id = 1", "live_owner"),
        ("state = 'w'", "live_waiting"),
        ("due_at = now()", "live_waiting"),
        ("is_retrying = true", "live_waiting"),
    ],
)
async def test_a_queued_task_cannot_become(dispatcher, change, constraint):
    await dispatcher.enqueue(a_task())
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await dispatcher.engine.database.fetch(QUEUED.format(change))


@pytest.mark.parametrize(
    ("change", "constraint"),
    [("lease_token = null", "live_lease"), ("worker_id = null", "live_owner"), ("state = 'q'", "live_")],
)
async def test_a_running_task_cannot_become(dispatcher, change, constraint):
    await a_running_task(dispatcher)
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await dispatcher.engine.database.fetch(RUNNING.format(change))


async def test_a_task_cannot_be_live_twice(dispatcher):
    await dispatcher.enqueue(a_task())
    with pytest.raises(asyncpg.UniqueViolationError):
        await dispatcher.engine.database.fetch("insert into holdfast.live select * from holdfast.live")


async def test_an_attempt_cannot_be_recorded_twice(dispatcher):
    with pytest.raises(asyncpg.UniqueViolationError):
        await dispatcher.engine.database.fetch(
            "insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)"
            " select 1, now(), now(), 1, 1, 'c', gen_random_uuid() from generate_series(1, 2)"
        )


async def test_a_paused_queue_names_who_paused_it(dispatcher):
    await dispatcher.enqueue(a_task())
    with pytest.raises(asyncpg.CheckViolationError):
        await dispatcher.engine.database.fetch("update holdfast.queue set paused_at = now()")


async def test_an_idempotency_key_is_not_empty(dispatcher):
    with pytest.raises(asyncpg.CheckViolationError):
        await dispatcher.engine.database.fetch(
            "insert into holdfast.idempotency (tenant_id, key, task_id, digest) values (1, '', 1, '')"
        )
