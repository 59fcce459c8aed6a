"""Workers' tokens: the queues they may serve, and the token of one attempt."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.server.conftest import path_of

from holdfast.core.identity.access import Access
from holdfast.core.identity.capability import Capability, seal
from holdfast.core.tasks.states import TaskState
from holdfast.engine.audit import list_audit
from holdfast.engine.identity.tokens import revoke_token
from holdfast.server.app import ENDPOINTS
from holdfast.settings.settings import AuthSettings, Settings
from holdfast.testing.factories import a_task

ASKED = "select count(*) >= $1 from holdfast.worker where beat_at > started_at"


@pytest.fixture
def holdfast_settings():
    return Settings(port=0)


async def registered(asked, **fields):
    answer = await asked.post("/internal/workers", {"actions": ["shop.charge"], "slots": 10, **fields})
    assert answer.status == 200, answer.body
    return answer.json["worker_id"]


@pytest.fixture
async def mail(call, token):
    """Asks with a token for the queue `mail` alone."""
    return call.bearing(await token("worker", "mailer", queues=["mail"]))


@pytest.fixture
async def anything(call, token):
    """Asks with a token for every queue."""
    return call.bearing(await token("worker", "any"))


@pytest.fixture
async def both(harness):
    """One task in each of two queues."""
    return {queue: (await harness.enqueue(a_task(queue=queue))).task_id for queue in ("mail", "money")}


async def test_a_limited_worker_is_registered_for_its_queues(mail, engine):
    worker_id = await registered(mail)
    query = "select queues from holdfast.worker where worker_id = $1"
    assert await engine.database.fetchval(query, int(worker_id)) == ["mail"]


@pytest.mark.parametrize("queues", [["money"], ["mail", "money"]])
async def test_a_worker_cannot_register_for_another_queue(mail, queues):
    answer = await mail.post("/internal/workers", {"actions": ["shop.charge"], "queues": queues})
    assert (answer.status, answer.json["code"]) == (403, "queue_not_allowed")


@pytest.mark.parametrize("queue", ["mail", "money"])
async def test_a_limited_worker_takes_no_action_away_from_its_queue(mail, anything, engine, queue):
    """Whoever declares an action says where its tasks go: not for a token of another queue to say."""
    declares = [{"action": "shop.charge", "queue": "money", "policy": {}}]
    await registered(anything, queues=["money"], declares=declares)
    answer = await mail.post(
        "/internal/workers", {"actions": ["shop.charge"], "declares": [{**declares[0], "queue": queue}]}
    )
    assert (answer.status, answer.json["code"]) == (403, "queue_not_allowed")
    assert (await engine.catalog.declared(1, "shop.charge")).queue == "money"


async def test_a_limited_worker_gets_its_own_queue_and_no_other(mail, both, harness, engine):
    worker_id = await registered(mail)
    for path in ("/internal/task-claim", "/internal/exchange"):
        answer = await mail.post(path, {"worker_id": worker_id, "queues": ["money"], "limit": 10})
        assert (answer.status, answer.json["code"]) == (403, "queue_not_allowed")
    answer = await mail.post("/internal/task-claim", {"worker_id": worker_id, "limit": 10})
    assert [task["task_id"] for task in answer.json["tasks"]] == [both["mail"]]
    assert (await harness.task(both["money"])).state is TaskState.QUEUED
    denied = await list_audit(engine.database, 1, verb="access.deny")
    assert {row.subject_id for row in denied} == {"POST /internal/task-claim", "POST /internal/exchange"}


async def test_a_limited_worker_cannot_name_a_task_of_another_queue(mail, both, harness):
    worker_id = await registered(mail)
    answer = await mail.post("/internal/task-claim", {"worker_id": worker_id, "task_id": both["money"]})
    assert (answer.status, answer.json["reason"]) == (409, "not_served")
    found = await harness.task(both["money"])
    assert (found.state, found.attempt) == (TaskState.QUEUED, 0)
    answer = await mail.post("/internal/task-claim", {"worker_id": worker_id, "task_id": both["mail"]})
    assert answer.status == 200


async def test_a_limited_worker_cannot_go_under_the_id_of_another(mail, anything, both):
    """Else it would be handed what the other one holds."""
    theirs = await registered(anything)
    answer = await anything.post("/internal/task-claim", {"worker_id": theirs, "limit": 10})
    assert len(answer.json["tasks"]) == 2
    for queues in (None, ["mail"]):
        answer = await mail.post("/internal/exchange", {"worker_id": theirs, "queues": queues, "limit": 1})
        assert (answer.status, answer.json["code"]) == (409, "worker_not_registered")
    answer = await mail.post("/internal/heartbeats", {"worker_id": theirs})
    assert (answer.status, answer.json["code"]) == (409, "worker_not_registered")


async def test_a_limited_worker_beats_under_its_own_id(mail):
    worker_id = await registered(mail)
    answer = await mail.post("/internal/heartbeats", {"worker_id": worker_id})
    assert (answer.status, answer.json["worker_state"]) == (200, "active")
    answer = await mail.post("/internal/heartbeats", {"worker_id": "999999"})
    assert (answer.status, answer.json["worker_state"]) == (200, None)


@pytest.fixture
async def claimed(anything, harness):
    """Two attempts that run, with their capability tokens."""
    for _ in range(2):
        await harness.enqueue(a_task())
    worker_id = await registered(anything)
    answer = await anything.post("/internal/exchange", {"worker_id": worker_id, "limit": 2})
    return answer.json["tasks"]


def lease_of(task, **changes):
    return {name: task[name] for name in ("task_id", "attempt", "lease_token")} | changes


@pytest.mark.parametrize("held", [[], None])
async def test_a_capability_goes_with_the_end_of_a_lease_and_with_no_lease_kept_in_bulk(anything, harness, held):
    await harness.enqueue(a_task())
    body = {"worker_id": await registered(anything), "held": held, "limit": 1}
    [task] = (await anything.post("/internal/exchange", body)).json["tasks"]
    assert [task["lease_expires_at"] is None, task["capability_token"] is None] == [held is None] * 2


async def test_a_capability_beats_for_and_settles_its_attempt(call, claimed, harness):
    task = claimed[0]
    asked = call.bearing(task["capability_token"])
    answer = await asked.post("/internal/heartbeat", lease_of(task))
    assert answer.status == 200 and answer.json["cancel_requested"] is False
    asked = call.bearing(answer.json["capability_token"])
    answer = await asked.post("/internal/task-complete", lease_of(task, status="completed", outputs=7))
    assert answer.status == 200
    assert (await harness.task(task["task_id"])).state is TaskState.COMPLETED


async def test_a_capability_is_of_no_other_attempt(call, claimed, harness):
    task, other = claimed
    asked = call.bearing(task["capability_token"])
    for path, body in (("heartbeat", {}), ("task-complete", {"status": "completed"})):
        for lease in (lease_of(other), lease_of(task, attempt=2)):
            answer = await asked.post(f"/internal/{path}", {**lease, **body})
            assert (answer.status, answer.json["code"]) == (403, "wrong_attempt")
    assert (await harness.task(other["task_id"])).state is TaskState.RUNNING


async def test_a_capability_does_nothing_without_the_lease(call, claimed, clock, harness):
    task = claimed[0]
    asked = call.bearing(task["capability_token"])
    forged = lease_of(task, lease_token="00000000-0000-4000-8000-000000000000", status="completed")
    assert (await asked.post("/internal/task-complete", forged)).status == 409
    await clock.advance(seconds=60)
    await harness.reap_once()
    answer = await asked.post("/internal/task-complete", lease_of(task, status="completed"))
    assert (answer.status, answer.json["code"]) == (409, "DAG_LEASE_CONTRACT_VIOLATION")


async def test_a_capability_opens_nothing_else(call, claimed):
    asked = call.bearing(claimed[0]["capability_token"])
    for endpoint in ENDPOINTS:
        if endpoint.access in (Access.PUBLIC, Access.ATTEMPT):
            continue
        body = {} if endpoint.method == "POST" else None
        answer = await asked(endpoint.method, path_of(endpoint, claimed[0]["task_id"]), body)
        assert answer.status == 403, endpoint.path


async def test_a_capability_of_another_installation_or_past_its_end_is_nobodys(call, claimed, engine):
    task = claimed[0]
    own = await engine.database.fetchval("select value from holdfast.secret where purpose = 'capability'")

    def sealed(secret, ends):
        return seal(Capability(tenant_id=1, task_id=int(task["task_id"]), attempt=1, ends=ends), secret)

    soon, past = int(time.time()) + 60, int(time.time()) - 1
    for text, status in ((sealed(own, soon), 200), (sealed(own, past), 401), (sealed(bytes(32), soon), 401)):
        assert (await call.bearing(text).post("/internal/heartbeat", lease_of(task))).status == status


async def test_a_capability_ends_with_the_token_that_its_task_was_claimed_with(call, token, harness, engine, ticks):
    await harness.enqueue(a_task())
    asked = call.bearing(await token("worker", "stolen"))
    worker_id = await registered(asked)
    [task] = (await asked.post("/internal/task-claim", {"worker_id": worker_id, "limit": 1})).json["tasks"]
    answer = await call.bearing(task["capability_token"]).post("/internal/heartbeat", lease_of(task))
    await revoke_token(engine.database, 1, "stolen", actor="ada")
    ticks.advance(AuthSettings().token_cache_seconds)
    for text in (task["capability_token"], answer.json["capability_token"]):
        for path in ("heartbeat", "task-complete"):
            refused = await call.bearing(text).post(f"/internal/{path}", lease_of(task, status="completed"))
            assert (refused.status, refused.json["code"]) == (401, "unauthorized")
    assert (await harness.task(task["task_id"])).state is TaskState.RUNNING


async def test_who_waits_is_handed_nothing_once_its_token_is_revoked(call, token, harness, engine, ticks, eventually):
    asked, other = call.bearing(await token("worker", "stolen")), call.bearing(await token("worker", "other"))
    waiting = []
    for one in (asked, other):
        body = {"worker_id": await registered(one), "limit": 1, "wait_seconds": 20}
        waiting.append(asyncio.create_task(one.post("/internal/task-claim", body)))
        await eventually(lambda: engine.database.fetchval(ASKED, len(waiting)))
    await revoke_token(engine.database, 1, "stolen", actor="ada")
    ticks.advance(AuthSettings().token_cache_seconds)
    task = await harness.enqueue(a_task())
    refused, found = await asyncio.gather(*waiting)
    assert refused.status == 401
    assert [one["task_id"] for one in found.json["tasks"]] == [task.task_id]


async def test_fields_that_are_not_a_workers_to_set_change_nothing(anything, harness, engine):
    task = await harness.enqueue(a_task())
    worker_id = await registered(anything, tenant_id=2, state="gone")
    body = {"worker_id": worker_id, "limit": 1, "tenant_id": 2, "state": "completed", "accepted": True}
    [found] = (await anything.post("/internal/task-claim", body)).json["tasks"]
    assert found["task_id"] == task.task_id
    assert (await harness.task(task.task_id)).state is TaskState.RUNNING
    assert await engine.database.fetchval("select state from holdfast.worker") == "active"


CALLS_AS_A_WORKER = {
    "/internal/exchange": {"held": [], "completions": [], "limit": 5},
    "/internal/task-claim": {"limit": 5, "held": []},
    "/internal/heartbeats": {"task_ids": [], "lease_tokens": []},
    "/internal/wait": {"wait_seconds": 0},
    "/internal/leave": {},
}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("path", CALLS_AS_A_WORKER)
async def test_nobody_speaks_for_the_worker_of_another_token(anything, call, token, harness, engine, path, is_known):
    """Ids are 1, 2, 3: whoever guesses one gets neither its leases nor its inputs, and cannot sign it off."""
    await harness.enqueue(a_task())
    worker_id = await registered(anything)
    if is_known:  # else the server reads it from the database
        [held] = (await anything.post("/internal/exchange", {"worker_id": worker_id, "limit": 1})).json["tasks"]
    other = call.bearing(await token("worker", "other"))
    answer = await other.post(path, {"worker_id": worker_id, **CALLS_AS_A_WORKER[path]})
    assert (answer.status, answer.json["code"]) == (409, "worker_not_registered")
    state = await engine.database.fetchval("select state from holdfast.worker where worker_id = $1", int(worker_id))
    assert state == "active"
    own = await anything.post("/internal/exchange", {"worker_id": worker_id, "held": [], "limit": 1})
    assert [task["task_id"] for task in own.json["tasks"]] == [held["task_id"]] if is_known else own.status == 200
