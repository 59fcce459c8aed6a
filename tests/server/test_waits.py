"""Approvals and events over HTTP: who may answer, once, and what the audit log says of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.core.flows import a_wait
from tests.flow.steps import finish

from holdfast.engine.audit import list_audit


@pytest.fixture
async def asking(harness):
    """A run whose node `paid` waits for an approval."""
    run = await harness.runs.start(a_wait(config={"approval": True, "prompt": "Ship it?"}))
    yield run
    await finish(harness)


async def test_a_viewer_sees_what_waits_and_may_not_answer(call, token, asking, harness, engine):
    asked = call.bearing(await token("viewer"))
    [wait] = (await asked.get("/api/v1/waits")).json["waits"]
    assert (wait["run_id"], wait["node"], wait["prompt"], wait["kind"]) == (asking, "paid", "Ship it?", "approval")
    for path, body in (
        (f"/api/v1/runs/{asking}/nodes/paid/approve", {}),
        (f"/api/v1/runs/{asking}/nodes/paid/reject", {"reason": "no"}),
        ("/api/v1/signals", {"name": "payment"}),
    ):
        assert (await asked.post(path, body)).status == 403
    assert (await harness.runs.nodes(asking))["paid"] == "running"
    assert await engine.database.fetchval("select count(*) from holdfast.signal") == 0


async def test_of_requests_at_once_one_is_taken_and_recorded(call, asking, engine):
    path = f"/api/v1/runs/{asking}/nodes/paid/approve"
    answers = await asyncio.gather(*(call.post(path, {"reason": "fine"}, x_dev_user=f"u{i}") for i in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
    assert {answer.json["code"] for answer in answers if answer.status == 409} == {"approval_answered"}
    [row] = await list_audit(engine.database, 1)
    assert (row.verb, row.subject_id, row.reason, row.after) == (
        "run.approve", asking, "fine", {"approved": True, "node": "paid"},
    )  # fmt: skip
    assert row.actor.startswith("dev:u")


async def test_a_rejection_says_why_or_is_refused(call, asking):
    path = f"/api/v1/runs/{asking}/nodes/paid/reject"
    for body, code in (({}, "invalid_body"), ({"reason": "  "}, "reason_required")):
        answer = await call.post(path, body)
        assert (answer.status, answer.json["code"]) == (400, code)
    assert (await call.post(path, {"reason": "too dear"})).json["state"] == "failed"


async def test_an_event_under_a_key_is_sent_once(call, harness, engine):
    run = await harness.runs.start(replace(a_wait(), version=2))
    body = {"name": "payment", "data": {"amount": 5}, "run_id": run}
    first, again = [await call.post("/api/v1/signals", body, idempotency_key="p7") for _ in range(2)]
    assert (first.status, first.json) == (201, again.json)
    assert [wait["run_id"] for wait in first.json["waits"]] == [run]
    assert await engine.database.fetchval("select count(*) from holdfast.signal") == 1
    other = await call.post("/api/v1/signals", body | {"data": 6}, idempotency_key="p7")
    assert (other.status, other.json["code"]) == (409, "key_reused")
    assert len(await list_audit(engine.database, 1)) == 1
    await finish(harness)
