"""Effects, steps and words over HTTP, under the lease of the attempt and no other."""

from __future__ import annotations

import uuid

import pytest

from holdfast.testing.factories import a_task


@pytest.fixture
async def lease(call, worker, harness):
    await harness.enqueue(a_task(max_retries=3, base_backoff_secs=0))
    [task] = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})).json["tasks"]
    return {name: task[name] for name in ("task_id", "attempt", "lease_token")}


async def test_an_effect_is_opened_answered_and_then_answered_with_its_receipt(call, lease):
    wanted = {**lease, "name": "smtp.send", "key": "welcome:7", "arguments": {"to": "anna"}}
    gate = (await call.post("/internal/effects", wanted)).json
    assert gate["open"] is True and gate["idempotency_key"].startswith("hf-")
    done = {**lease, "idempotency_key": gate["idempotency_key"], "state": "done", "receipt": {"id": 9}}
    assert (await call.post("/internal/effects/answer", done)).json == {"kept": True}
    again = (await call.post("/internal/effects", wanted)).json
    assert (again["open"], again["refused"], again["receipt"]) == (False, False, {"id": 9})
    other = await call.post("/internal/effects", {**wanted, "arguments": {"to": "bob"}})
    assert (other.status, other.json["code"]) == (409, "effect_key_reused")


async def test_a_refusal_is_an_answer_too(call, lease):
    wanted = {**lease, "name": "smtp.send", "key": "welcome:7", "arguments": []}
    gate = (await call.post("/internal/effects", wanted)).json
    body = {**lease, "idempotency_key": gate["idempotency_key"], "state": "refused", "code": "no", "message": "never"}
    await call.post("/internal/effects/answer", body)
    again = (await call.post("/internal/effects", wanted)).json
    assert (again["open"], again["refused"], again["code"], again["message"]) == (False, True, "no", "never")


async def test_an_answer_to_what_is_not_open_is_refused_for_good(call, lease):
    wanted = {**lease, "name": "smtp.send", "key": "welcome:7", "arguments": []}
    gate = (await call.post("/internal/effects", wanted)).json
    await call.post("/internal/effects/answer", {**lease, "idempotency_key": gate["idempotency_key"], "state": "done"})
    for key in ("hf-nobody-opened-it", gate["idempotency_key"]):
        answer = await call.post("/internal/effects/answer", {**lease, "idempotency_key": key, "state": "refused"})
        # Not 503, after which a worker would ask again and again.
        assert (answer.status, answer.json["code"]) == (409, "effect_not_open")


async def test_steps_are_kept_for_the_next_attempt(call, worker, lease):
    kept = {**lease, "name": "think", "arguments": [7], "output": {"square": 49}}
    assert (await call.post("/internal/steps", kept)).json == {"kept": True}
    await call.post("/internal/task-complete", {**lease, "status": "failed", "error": {"said": "retry"}})
    [task] = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})).json["tasks"]
    again = {name: task[name] for name in ("task_id", "attempt", "lease_token")}
    [step] = (await call.post("/internal/steps/recall", again)).json["steps"]
    assert (step["name"], step["output"]) == ("think", {"square": 49})


async def test_words_are_kept(call, lease, engine):
    events = [{"kind": "log", "detail": {"message": "half way"}}, {"kind": "progress", "detail": {"done": 1}}]
    answer = await call.post("/internal/progress", {"notes": [{**lease, "events": events}]})
    assert answer.json == {"accepted": 2}
    rows = await engine.database.fetch("select kind from holdfast.note order by seq")
    assert [row["kind"] for row in rows] == ["log", "progress"]


BODIES = {
    "/internal/effects": {"name": "smtp.send", "key": "k", "arguments": []},
    "/internal/effects/answer": {"idempotency_key": "hf-1", "state": "done"},
    "/internal/steps": {"name": "think", "arguments": [], "output": 1},
    "/internal/steps/recall": {},
}


async def test_nothing_is_kept_without_the_very_lease(call, lease, engine, subtests):
    for path in BODIES:
        for forged in [{"attempt": 2}, {"lease_token": str(uuid.uuid4())}, {"task_id": "999"}]:
            with subtests.test(path=path, forged=forged):
                answer = await call.post(path, {**lease, **BODIES[path], **forged})
                assert (answer.status, answer.json["code"]) == (409, "DAG_LEASE_CONTRACT_VIOLATION")
                assert await engine.database.fetchval("select count(*) from holdfast.effect") == 0


async def test_words_without_the_lease_are_dropped(call, lease, engine):
    note = {**lease, "lease_token": str(uuid.uuid4()), "events": [{"kind": "log", "detail": {}}]}
    assert (await call.post("/internal/progress", {"notes": [note]})).status == 200
    assert await engine.database.fetchval("select count(*) from holdfast.note") == 0


async def test_bad_questions_are_refused(call, lease, subtests):
    cases = [
        ("/internal/effects", {"digest": "AAAA"}),
        ("/internal/effects", {"name": "no spaces"}),
        ("/internal/effects", {"ordinal": -1}),
        ("/internal/effects/answer", {"state": "fine"}),
        ("/internal/steps", {"digest": "AAAA"}),
        ("/internal/steps", {"name": ""}),
    ]
    for path, bad in cases:
        with subtests.test(path=path, bad=bad):
            assert (await call.post(path, {**lease, **BODIES[path], **bad})).status == 400
