"""Calls of workers whose answers get lost, made again as a worker makes them."""

from __future__ import annotations

import http.client

import pytest
from tests.server.conftest import Caller
from tests.worker.servers import LossyWay

from holdfast.testing.factories import a_task


@pytest.fixture
async def lossy(call):
    """The server, by a way that loses the first answer of every path."""
    asked = set()
    async with LossyWay(call.url, lambda path: not (path in asked or asked.add(path))) as way:
        yield Caller(way.url)


async def again(caller, path, body):
    """The answer to a call made until it is answered."""
    with pytest.raises((http.client.HTTPException, OSError)):
        await caller.post(path, body)
    answer = await caller.post(path, body)
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_claim_that_names_what_is_held_gives_again_what_a_lost_answer_gave(lossy, call, worker, harness):
    first, second = [(await harness.enqueue(a_task(max_losses=0))).task_id for _ in range(2)]
    told = await again(lossy, "/internal/task-claim", {"worker_id": worker, "limit": 1, "held": []})
    assert [one["task_id"] for one in told["tasks"]] == [first]
    assert {"lease_token", "lease_expires_at", "capability_token"} <= told["tasks"][0].keys()
    body = {"worker_id": worker, "limit": 1, "held": [first]}
    assert [one["task_id"] for one in (await call.post("/internal/task-claim", body)).json["tasks"]] == [second]


async def test_a_claim_that_names_what_is_held_renews_it_and_tells_what_became_of_it(call, worker, harness, clock):
    kept = (await harness.enqueue(a_task())).task_id
    [given] = (await call.post("/internal/task-claim", {"worker_id": worker, "held": []})).json["tasks"]
    await clock.advance(seconds=5)
    await harness.cancel(kept)
    body = {"worker_id": worker, "held": [kept, "999999"]}
    told = (await call.post("/internal/task-claim", body)).json
    assert told == {"tasks": [], "lost": ["999999"], "canceled": [kept], "busy": []}
    await clock.advance(seconds=6)
    lease = {name: given[name] for name in ("task_id", "attempt", "lease_token")}
    assert (await call.post("/internal/heartbeat", lease)).status == 200


async def test_a_claim_names_no_more_than_a_batch(call, worker):
    answer = await call.post("/internal/task-claim", {"worker_id": worker, "held": list(range(1, 10_002))})
    assert (answer.status, answer.json["code"]) == (400, "invalid_batch")
