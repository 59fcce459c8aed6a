"""More requests at once than the pool has sessions: each is answered, and a read next to them is not held up."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.server.conftest import Caller

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.server.app import serving
from holdfast.settings.settings import Settings
from holdfast.store.database import CONNECT_SECONDS_MAX
from holdfast.testing.factories import ACTION

SESSIONS, REQUESTS = 20, 60


@pytest.fixture
async def busy(holdfast_url):
    """A server whose pool is smaller than the crowd that asks it."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(REQUESTS + 1))
    settings = Settings(env="local", port=0)
    async with Engine(holdfast_url, settings, sessions_max=SESSIONS) as engine:
        await engine.catalog.declare(engine.tenant_id, ACTION, "default", RetryPolicy(), "1")
        async with serving(engine) as url:
            yield Caller(url)


async def at_once(busy, path, body):
    """What each of the crowd is answered, and how long a read among them took."""
    asked = [asyncio.create_task(busy.post(path, body)) for _ in range(REQUESTS)]
    began = time.monotonic()
    read = await busy.get("/api/v1/queues")
    seconds = time.monotonic() - began
    assert read.status == 200
    return [answer.status for answer in await asyncio.gather(*asked)], seconds


async def test_batches_wait_for_no_second_session(busy):
    statuses, seconds = await at_once(busy, "/api/v1/tasks/batch", {"action": ACTION, "inputs": [{}, {}]})
    assert statuses == [201] * REQUESTS
    assert seconds < CONNECT_SECONDS_MAX / 2


async def test_webhooks_that_are_not_there_need_no_second_session(busy):
    statuses, seconds = await at_once(busy, "/api/v1/webhooks/nope/pause", {"reason": "x"})
    assert statuses == [404] * REQUESTS
    assert seconds < CONNECT_SECONDS_MAX / 2
