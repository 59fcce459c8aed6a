"""API tokens at the real server: roles, expiry, revocation, the cache, and what is written down."""

from __future__ import annotations

import asyncio

import pytest
from tests.server.conftest import path_of

from holdfast.core.identity.access import ROLES, Access, Role
from holdfast.engine.audit import list_audit
from holdfast.engine.identity import tokens
from holdfast.server.app import ENDPOINTS
from holdfast.settings.settings import AuthSettings, Settings
from holdfast.testing.factories import a_task

CACHED = AuthSettings().token_cache_seconds


@pytest.fixture
def holdfast_settings():
    return Settings(port=0)


@pytest.mark.parametrize("role", Role)
async def test_every_role_gets_in_where_the_table_says_and_nowhere_else(call, token, role):
    asked = call.bearing(await token(role))
    for endpoint in ENDPOINTS:
        if endpoint.access is Access.PUBLIC or endpoint.path.endswith("/events"):
            continue
        answer = await asked(endpoint.method, path_of(endpoint, "999999"), {} if endpoint.method == "POST" else None)
        is_in = answer.status not in (401, 403)
        assert is_in == (endpoint.access in ROLES[role]), (endpoint.method, endpoint.path, answer.body)
        if not is_in:
            assert (answer.status, answer.json["code"]) == (403, "forbidden")


async def test_a_token_acts_under_its_name_in_its_tenant(call, token, harness, engine):
    task = await harness.enqueue(a_task())
    asked = call.bearing(await token("operator", "ci"))
    assert (await asked.post(f"/api/v1/tasks/{task.task_id}/cancel")).status == 202
    rows = await list_audit(engine.database, 1)
    assert [(row.verb, row.actor) for row in rows] == [("task.cancel", "token:ci"), ("token.create", "ada")]


async def test_the_tenant_of_the_token_decides_whatever_else_is_said(call, token, harness, engine):
    await engine.database.fetch("insert into holdfast.tenant (tenant_id, name) values (2, 'other')")
    task = await harness.enqueue(a_task())
    asked = call.bearing(await token("operator", tenant_id=2))
    path = f"/api/v1/tasks/{task.task_id}"
    for answer in (
        await asked.get(path),
        await asked.get(path, x_tenant="1", x_tenant_id="default"),
        await asked.get(f"{path}/why"),
        await asked.post(f"{path}/cancel", {"reason": "mine"}),
        await asked.post(f"{path}/retry"),
    ):
        assert (answer.status, answer.json["category"]) == (404, "not_found")
    assert (await asked.get("/api/v1/tasks")).json["tasks"] == []
    assert (await harness.task(task.task_id)).state == "queued"


async def test_a_token_that_is_not_right_is_nobodys(call, token, ticks):
    text = await token("admin")
    spoiled = [
        text[:-1],
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        "hf_000000000000_" + text[-43:],
        text.upper(),
        f"{text} {text}",
        "hf_",
        "x" * 9_000,
        "a.b.c",
        "\xe9",
    ]
    for wrong in spoiled:
        ticks.advance(60)
        answer = await call.bearing(wrong).get("/api/v1/tasks")
        assert (answer.status, answer.json["code"]) == (401, "unauthorized"), wrong
        assert answer.headers["www-authenticate"] == "Bearer"
    assert (await call.bearing(text).get("/api/v1/tasks")).status == 200


async def test_another_authorization_is_nobodys(call):
    for header in ("", "Bearer", "Bearer ", "Basic YTpi", "Token x", "bearer  "):
        assert (await call.get("/api/v1/tasks", authorization=header)).status == 401, header


async def test_the_scheme_may_be_written_in_any_case(call, token):
    text = await token("viewer")
    assert (await call.get("/api/v1/tasks", authorization=f"bEARER {text}")).status == 200


async def test_two_authorizations_are_nobodys(call, token):
    text = await token("viewer")

    def ask():
        connection = call.open()
        connection.putrequest("GET", "/api/v1/tasks")
        connection.putheader("authorization", f"Bearer {text}")
        connection.putheader("authorization", f"Bearer {text}")
        connection.endheaders()
        status = connection.getresponse().status
        connection.close()
        return status

    assert await asyncio.to_thread(ask) == 401


async def test_an_expired_token_is_nobodys(call, token, clock, ticks):
    asked = call.bearing(await token("viewer", expires_seconds=3600))
    assert (await asked.get("/api/v1/tasks")).status == 200
    await clock.advance(seconds=3601)
    ticks.advance(CACHED)
    assert (await asked.get("/api/v1/tasks")).status == 401


async def test_a_revoked_token_is_nobodys_within_the_time_of_the_cache(call, token, engine, ticks):
    asked = call.bearing(await token("viewer", "old"))
    assert (await asked.get("/api/v1/tasks")).status == 200
    await tokens.revoke_token(engine.database, 1, "old", actor="ada")
    ticks.advance(CACHED - 0.1)
    assert (await asked.get("/api/v1/tasks")).status == 200
    ticks.advance(0.1)
    assert (await asked.get("/api/v1/tasks")).status == 401
    assert (await asked.get("/api/v1/tasks")).status == 401


class TestWithoutACache:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(port=0, auth=AuthSettings(token_cache_seconds=0))

    async def test_a_revoked_token_is_nobodys_at_once(self, call, token, engine):
        asked = call.bearing(await token("viewer", "old"))
        assert (await asked.get("/api/v1/tasks")).status == 200
        await tokens.revoke_token(engine.database, 1, "old", actor="ada")
        assert (await asked.get("/api/v1/tasks")).status == 401


async def test_a_use_is_written_down_at_most_once_a_minute(call, token, engine, clock, ticks):
    await clock.freeze()
    asked = call.bearing(await token("viewer"))

    async def used_after(seconds):
        await clock.advance(seconds=seconds)
        ticks.advance(seconds)
        assert (await asked.get("/api/v1/tasks")).status == 200
        [row] = await tokens.list_tokens(engine.database, 1)
        return row.last_used_at

    first = await used_after(0)
    assert first is not None
    assert await used_after(50) == first
    assert await used_after(10) > first


async def test_many_at_once_cost_one_look_up(call, token, engine, monkeypatch):
    text, looked, real = await token("viewer"), [], tokens.find_bearer

    async def counted(*arguments):
        looked.append(arguments)
        return await real(*arguments)

    monkeypatch.setattr("holdfast.server.auth.authenticator.find_bearer", counted)
    answers = await asyncio.gather(*(call.bearing(text).get("/api/v1/tasks") for _ in range(20)))
    assert {answer.status for answer in answers} == {200} and len(looked) == 1


async def test_who_is_refused_is_in_the_audit_log_once_a_minute(call, token, engine, ticks):
    asked = call.bearing(await token("viewer", "curious"))

    async def denials():
        rows = await list_audit(engine.database, 1, verb="access.deny")
        return [(row.actor, row.subject_id, row.after["needs"]) for row in rows]

    for _ in range(3):
        assert (await asked.post("/api/v1/tasks/1/cancel", {})).status == 403
    expected = ("token:curious", "POST /api/v1/tasks/{task_id}/cancel", "operator")
    assert await denials() == [expected]
    ticks.advance(61)
    assert (await asked.post("/api/v1/tasks/2/cancel", {})).status == 403
    assert await denials() == [expected] * 2


async def test_an_operator_at_the_workers_door_is_in_the_audit_log_and_a_worker_who_only_looked_is_not(
    call, token, engine
):
    assert (await call.bearing(await token("operator")).post("/internal/exchange", {})).status == 403
    assert (await call.bearing(await token("worker")).get("/api/v1/tasks")).status == 403
    [row] = await list_audit(engine.database, 1, verb="access.deny")
    assert (row.actor, row.after) == ("token:a-operator", {"needs": "worker", "code": "forbidden"})


async def test_an_open_stream_ends_when_its_token_does(call, token, engine, ticks, monkeypatch):
    monkeypatch.setattr("holdfast.server.event_tail.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("holdfast.server.event_stream.ALIVE_SECONDS", 0.05)
    asked = call.bearing(await token("viewer", "watcher"))
    connection = call.open()

    def begin():
        connection.request("GET", "/api/v1/events", headers=asked.headers)
        response = connection.getresponse()
        assert response.readline() == b": connected\n"
        return response

    response = await asyncio.to_thread(begin)
    await tokens.revoke_token(engine.database, 1, "watcher", actor="ada")
    ticks.advance(CACHED)
    assert b"event" not in await asyncio.to_thread(response.read)
    connection.close()
