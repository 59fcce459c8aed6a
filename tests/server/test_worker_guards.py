"""Breakers and quotas hear what workers report over HTTP."""

from __future__ import annotations

import pytest
from tests.server.conftest import Caller
from tests.server.leases import claimed, lease_of

from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.engine.engine import Engine
from holdfast.server.app import serving
from holdfast.testing.factories import ACTION, a_task

DOWN = {"code": "E1", "message": "connection reset by peer", "type": "ConnectionError"}


@pytest.fixture
async def elsewhere(holdfast_url, holdfast_settings):
    """A second server that handed nothing out itself."""
    async with Engine(holdfast_url, holdfast_settings) as second, serving(second) as url:
        yield Caller(url)


async def test_failures_reported_over_http_open_a_breaker_whichever_server_hears_them(call, elsewhere, worker, harness):
    await harness.guard(ACTION, breaker=Breaker(attempts_min=4))
    await harness.enqueue_many(a_task(), [{}] * 8)
    tasks = await claimed(call, worker)
    for server, task in zip((call, elsewhere, call, elsewhere), tasks[:4], strict=True):
        assert (await harness.breaker(ACTION)).state == "closed"
        await server.post("/internal/task-complete", lease_of(task, status="failed", error=DOWN))
    shown = await harness.breaker(ACTION)
    assert (shown.state, shown.attempts, shown.failures) == ("open", 4, 4)


async def test_failures_in_a_batch_reported_over_http_open_a_breaker(elsewhere, call, worker, harness):
    await harness.guard(ACTION, breaker=Breaker(attempts_min=4))
    await harness.enqueue_many(a_task(), [{}] * 4)
    done = [lease_of(task, status="failed", error=DOWN) for task in await claimed(call, worker)]
    answer = await elsewhere.post("/internal/exchange", {"worker_id": worker, "completions": done, "limit": 0})
    assert (answer.status, answer.json["accepted"]) == (200, 4)
    assert (await harness.breaker(ACTION)).state == "open"


async def test_retries_of_failures_reported_over_http_obey_the_quota(call, worker, harness, clock):
    await clock.freeze()
    await harness.enqueue_many(a_task(base_backoff_secs=0), [{}] * 4)
    await harness.quota(Quota(retries=1), queue="default")
    for task in await claimed(call, worker):
        await call.post("/internal/task-complete", lease_of(task, status="failed", error=DOWN))
    assert await claimed(call, worker) == []
    assert await harness.reconcile_once() == 1
    assert len(await claimed(call, worker)) == 1
