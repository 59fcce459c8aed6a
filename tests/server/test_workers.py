"""The worker contract over HTTP: the same fence as for a worker beside the database."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from tests.server.leases import claimed, lease_of

from holdfast.core.tasks.states import TaskState
from holdfast.engine.limits import queues
from holdfast.testing.factories import a_completed_task, a_delayed_task, a_running_task, a_task


async def test_a_worker_registers_and_learns_its_id_and_pace(call, engine):
    body = {
        "worker_id": "pod-7",
        "actions": ["a.b"],
        "queues": ["mail"],
        "runtimes": ["python"],
        "slots": 3,
        "version": "1.2",
    }
    answer = await call.post("/internal/workers", body | {"labels": {"zone": "a"}})
    assert (answer.json["lease_seconds"], answer.json["heartbeat_seconds"]) == (10.0, 3.0)
    row = await engine.database.fetchrow(
        "select * from holdfast.worker where worker_id = $1", int(answer.json["worker_id"])
    )
    assert (row["name"], row["actions"], row["queues"], row["slots"], row["version"]) == (
        "pod-7",
        ["a.b"],
        ["mail"],
        3,
        "1.2",
    )
    assert '"python"' in row["labels"] and '"zone"' in row["labels"]


async def test_a_version_that_cannot_be_stored_is_kept_without_what_cannot(call, engine):
    answer = await call.post("/internal/workers", {"actions": ["a.b"], "version": "1\0.2"})
    version = await engine.database.fetchval(
        "select version from holdfast.worker where worker_id = $1", int(answer.json["worker_id"])
    )
    assert version == "1\ufffd.2"


async def test_a_worker_with_a_long_id_is_known(call, engine, harness):
    await engine.database.fetch("select setval('holdfast.worker_worker_id_seq', 123456789012)")
    await harness.enqueue(a_task())
    registered = (await call.post("/internal/workers", {"worker_id": "pod-7", "actions": ["shop.charge"]})).json
    [found] = await claimed(call, registered["worker_id"])
    answer = await call.post("/internal/task-complete", lease_of(found, status="completed", outputs=None))
    assert answer.status == 200 and registered["worker_id"] == "123456789013"
    shown = await call.get(f"/api/v1/workers/{registered['worker_id']}")
    assert shown.json["name"] == "pod-7"


async def test_a_bad_registration_is_refused(call, subtests):
    for bad in [{"slots": 0}, {"actions": ["no spaces"]}, {"worker_id": "x" * 200}, {"queues": ["?"]}]:
        with subtests.test(bad=bad):
            assert (await call.post("/internal/workers", bad)).status == 400


async def test_a_claimed_task_has_what_the_contract_says(call, worker, harness):
    task = await harness.enqueue(a_task(input={"order": 7}, tags=("red",), timeout_seconds=60))
    [found] = await claimed(call, worker)
    assert {**found, "lease_token": None, "lease_expires_at": None} == {
        "task_id": task.task_id,
        "attempt": 1,
        "lease_token": None,
        "lease_expires_at": None,
        "action": "shop.charge",
        "queue": "default",
        "input": {"order": 7},
        "tags": ["red"],
        "run_id": None,
        "timeout_seconds": 60.0,
        "capability_token": found["capability_token"],
        "tenant": "default",
        "memory_bytes_max": None,
    }
    assert uuid.UUID(found["lease_token"]) and found["lease_expires_at"].endswith("Z")
    assert (await harness.task(task.task_id)).state is TaskState.RUNNING
    assert await claimed(call, worker) == []


async def test_a_named_task_is_claimed_or_the_reason_told(call, worker, harness, engine):
    task, delayed = await harness.enqueue(a_task()), await harness.enqueue(a_delayed_task())
    done = await a_completed_task(harness, queue="other")
    assert [one["task_id"] for one in await claimed(call, worker, task_id=task.task_id)] == [task.task_id]
    running = (await a_running_task(harness)).task_id
    for task_id, reason in ((running, "already_running"), (delayed.task_id, "not_due"), (done, "completed")):
        answer = await call.post("/internal/task-claim", {"worker_id": worker, "task_id": task_id})
        assert (answer.status, answer.json["code"], answer.json["reason"]) == (409, "not_claimable", reason)
    answer = await call.post("/internal/task-claim", {"worker_id": worker, "task_id": 999})
    assert (answer.status, answer.json["code"]) == (404, "task_not_found")
    paused = await harness.enqueue(a_task(queue="mail"))
    await queues.pause(engine, 1, "mail", actor="x", reason="")
    answer = await call.post("/internal/task-claim", {"worker_id": worker, "task_id": paused.task_id})
    assert answer.json["reason"] == "paused"


async def test_a_named_task_the_worker_does_not_serve_is_refused(call, harness, subtests):
    for served in [{"actions": ["shop.other"]}, {"queues": ["mail"]}]:
        with subtests.test(served=served):
            task = await harness.enqueue(a_task())
            registered = await call.post(
                "/internal/workers", {"name": "w", "actions": ["shop.charge"], "slots": 1, **served}
            )
            worker_id = registered.json["worker_id"]
            answer = await call.post("/internal/task-claim", {"worker_id": worker_id, "task_id": task.task_id})
            assert (answer.status, answer.json["reason"]) == (409, "not_served")
            assert (await harness.task(task.task_id)).state is TaskState.QUEUED


async def test_a_named_claim_whose_answer_got_lost_is_answered_again_to_its_worker(call, worker, harness, clock):
    task = await harness.enqueue(a_task())
    [first] = await claimed(call, worker, task_id=task.task_id)
    await clock.advance(seconds=5)
    [again] = await claimed(call, worker, task_id=task.task_id)
    assert (again["lease_token"], again["attempt"]) == (first["lease_token"], 1)
    assert again["lease_expires_at"] > first["lease_expires_at"]
    other = await call.post("/internal/workers", {"worker_id": "w2", "actions": ["shop.charge"], "slots": 1})
    body = {"worker_id": other.json["worker_id"], "task_id": task.task_id}
    assert (await call.post("/internal/task-claim", body)).json["reason"] == "already_running"
    await clock.advance(seconds=60)
    body = {"worker_id": worker, "task_id": task.task_id}
    assert (await call.post("/internal/task-claim", body)).json["reason"] == "lease_expired"


async def test_an_unregistered_worker_is_refused(call, subtests):
    for unknown in ["999", "w1", -1]:
        with subtests.test(unknown=unknown):
            answer = await call.post("/internal/task-claim", {"worker_id": unknown, "limit": 1})
            assert (answer.status, answer.json["code"]) == (409, "worker_not_registered")
            answer = await call.post("/internal/exchange", {"worker_id": unknown})
            assert (answer.status, answer.json["code"]) == (409, "worker_not_registered")


async def test_a_worker_that_left_is_refused_and_one_that_drains_gets_nothing(call, worker, harness, engine):
    await harness.enqueue(a_task())
    await engine.database.fetch("update holdfast.worker set state = 'draining' where worker_id = $1", int(worker))
    assert await claimed(call, worker) == []
    assert (await call.post("/internal/exchange", {"worker_id": worker, "limit": 5})).json["draining"] is True
    await engine.database.fetch(
        "update holdfast.worker set state = 'gone', ended_at = now() where worker_id = $1", int(worker)
    )
    assert (await call.post("/internal/task-claim", {"worker_id": worker, "limit": 1})).status == 409


async def test_a_heartbeat_extends_the_lease_and_tells_of_a_cancel(call, worker, harness, clock):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    await clock.advance(seconds=5)
    answer = await call.post("/internal/heartbeat", lease_of(task))
    assert answer.status == 200 and answer.json["lease_expires_at"] > task["lease_expires_at"]
    assert answer.json["cancel_requested"] is False
    await harness.cancel(task["task_id"])
    assert (await call.post("/internal/heartbeat", lease_of(task))).json["cancel_requested"] is True


async def test_a_heartbeat_counts_as_a_beat_of_its_worker(call, worker, harness, engine, clock):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    before = await engine.database.fetchval("select beat_at from holdfast.worker where worker_id = $1", int(worker))
    await clock.advance(seconds=5)
    await call.post("/internal/heartbeat", lease_of(task))
    after = await engine.database.fetchval("select beat_at from holdfast.worker where worker_id = $1", int(worker))
    assert after > before


async def test_a_heartbeat_needs_the_very_lease(call, worker, harness, subtests):
    for forged in [{"attempt": 2}, {"lease_token": str(uuid.uuid4())}, {"task_id": "999"}]:
        with subtests.test(forged=forged):
            await harness.enqueue(a_task())
            [task] = await claimed(call, worker)
            answer = await call.post("/internal/heartbeat", lease_of(task, **forged))
            assert (answer.status, answer.json["code"]) == (409, "DAG_LEASE_CONTRACT_VIOLATION")


async def test_an_expired_lease_is_never_revived(call, worker, harness, clock):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    await clock.advance(seconds=11)
    assert (await call.post("/internal/heartbeat", lease_of(task))).status == 409
    assert (await call.post("/internal/task-complete", lease_of(task, status="completed"))).status == 200


@pytest.mark.parametrize("status", ["completed", "succeeded"])
async def test_a_completion_is_accepted_once_and_repeated_answers_as_before(call, worker, harness, engine, status):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    body = lease_of(task, status=status, outputs={"charged": 7}, events=[{"kind": "log", "detail": {"message": "hi"}}])
    for _ in range(2):
        answer = await call.post("/internal/task-complete", body)
        assert (answer.status, answer.json["accepted"]) == (200, True)
    assert (await harness.task(task["task_id"])).state is TaskState.COMPLETED
    assert await engine.database.fetchval("select output from holdfast.attempt") == b'{"charged":7}'
    assert await engine.database.fetchval("select count(*) from holdfast.note") == 1
    answer = await call.post("/internal/task-complete", lease_of(task, status="failed"))
    assert (answer.status, "attempt 1 is completed" in answer.json["winner"]) == (409, True)


async def test_the_same_lease_completing_with_another_output_is_refused(call, worker, harness, engine):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    assert (await call.post("/internal/task-complete", lease_of(task, status="completed", outputs=1))).status == 200
    answer = await call.post("/internal/task-complete", lease_of(task, status="completed", outputs=2))
    assert (answer.status, answer.json["code"]) == (409, "DAG_LEASE_CONTRACT_VIOLATION")
    assert await engine.database.fetchval("select output from holdfast.attempt") == b"1"


async def test_a_failure_is_decided_by_the_tasks_own_policy(call, worker, harness):
    await harness.enqueue(a_task(max_retries=1, base_backoff_secs=0))
    error = {"code": "E1", "message": "connection reset by peer", "type": "ConnectionError", "traceback": "…"}
    for attempt, state in ((1, TaskState.QUEUED), (2, TaskState.FAILED)):
        [task] = await claimed(call, worker)
        assert task["attempt"] == attempt
        answer = await call.post("/internal/task-complete", lease_of(task, status="failed", error=error))
        assert answer.status == 200
        assert (await harness.task(task["task_id"])).state is state
    [first, second] = await harness.attempts(task["task_id"])
    assert (first.state, second.state) == ("failed", "failed")


async def test_a_late_report_is_refused_and_told_who_won(call, worker, harness, clock):
    await harness.enqueue(a_task())
    [first] = await claimed(call, worker)
    await clock.advance(seconds=60)
    await harness.reap_once()
    [second] = await claimed(call, worker)
    for status in ("completed", "failed", "released"):
        answer = await call.post("/internal/task-complete", lease_of(first, status=status))
        assert (answer.status, answer.json["code"]) == (409, "DAG_LEASE_CONTRACT_VIOLATION")
        assert "attempt 2 is running" in answer.json["winner"]
    assert (await call.post("/internal/task-complete", lease_of(second, status="completed"))).status == 200


async def test_a_bad_completion_is_refused(call, worker, harness, subtests):
    cases = [
        {"status": "fine"},
        {"attempt": 0},
        {"lease_token": "x"},
        {"attempt": "1"},
        {"events": [{"kind": "log", "detail": {"message": "x" * 20_000}}]},
        {"outputs": msgspec.Raw(b"[" * 50_000 + b"]" * 50_000)},
    ]
    for bad in cases:
        with subtests.test(bad=bad):
            await harness.enqueue(a_task())
            [task] = await claimed(call, worker)
            body = msgspec.json.encode(lease_of(task, status="completed") | bad)
            assert (await call.post("/internal/task-complete", body)).status in (400, 413)


async def test_what_a_worker_says_beside_its_result_never_costs_it_the_result(call, worker, harness, engine):
    await harness.enqueue(a_task(max_retries=0))
    [task] = await claimed(call, worker)
    events = [
        {"kind": "log", "detail": {"message": "hi"}},
        {"kind": "progress", "detail": {"done": 1, "total": 2}},
        {"kind": "progress", "detail": {"done": "3"}},
        {"kind": "metric", "value": 7},
        {"kind": "log", "detail": None},
        "only text",
        None,
    ]
    nothing = dict.fromkeys(("code", "message", "type", "traceback", "said", "bases", "frames"))
    body = lease_of(task, status="failed", error=nothing, events=events)
    assert (await call.post("/internal/task-complete", body)).status == 200
    assert (await harness.task(task["task_id"])).state is TaskState.FAILED
    logs = (await call.get(f"/api/v1/tasks/{task['task_id']}/logs")).json["notes"]
    assert [(one["kind"], one["detail"]) for one in logs] == [
        ("log", {"message": "hi"}),
        ("progress", {"done": 1, "total": 2}),
        ("log", events[2]),
        ("log", events[3]),
        ("log", events[4]),
        ("log", {"message": "only text"}),
    ]
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    body = lease_of(task, status="completed", events=None, error=None)
    assert (await call.post("/internal/task-complete", body)).status == 200


async def test_an_output_beyond_its_limit_is_refused(call, worker, harness, engine):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    large = "x" * (engine.settings.limits.output_bytes_max + 10)
    answer = await call.post("/internal/task-complete", lease_of(task, status="completed", outputs=large))
    assert (answer.status, answer.json["code"]) == (413, "payload_too_large")


async def test_a_worker_cannot_offer_an_inner_url_to_be_probed(call):
    labels = {"probe_url": "http://169.254.169.254/latest/meta-data"}
    answer = await call.post("/internal/workers", {"worker_id": "w", "actions": ["a"], "labels": labels})
    assert (answer.status, answer.json["code"]) == (422, "url_not_allowed")
