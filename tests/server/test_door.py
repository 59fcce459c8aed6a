"""Who gets in: every route says whom it admits, and development sign-in counts on one's own machine only."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request
from tests.server.conftest import path_of

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.errors import HoldfastError, InvalidSettings, LeaseLost, NotFound, Unavailable, WaitTimeout
from holdfast.server.app import ENDPOINTS, application, serving
from holdfast.server.auth.caller import Access
from holdfast.server.auth.client_address import is_loopback, require_safe_address
from holdfast.server.auth.dev_sign_in import developer
from holdfast.server.problems import STATUSES, problem, status_of
from holdfast.settings.settings import Settings
from holdfast.testing.factories import a_task

PUBLIC = {"/", "/healthz", "/readyz"}
GUARDED = [endpoint for endpoint in ENDPOINTS if endpoint.access is not Access.PUBLIC]


def name_of(endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def test_every_route_is_declared_with_its_access():
    routes = {(method, route.path) for route in application(None).routes for method in route.methods - {"HEAD"}}
    assert routes == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.access is Access.PUBLIC} == PUBLIC
    assert all(
        endpoint.access in (Access.WORKER, Access.ATTEMPT)
        for endpoint in ENDPOINTS
        if endpoint.path.startswith("/internal/")
    )
    assert all(
        endpoint.access in (Access.OPERATOR, Access.ADMIN)
        for endpoint in ENDPOINTS
        if endpoint.method != "GET" and not endpoint.path.startswith("/internal/")
    )


async def test_nobody_gets_in_without_saying_who(call):
    for endpoint in GUARDED:
        body = {} if endpoint.method == "POST" else None
        answer = await call(endpoint.method, path_of(endpoint), body, x_dev_user=None)
        told = (answer.status, answer.json["code"], answer.json["category"], answer.headers["www-authenticate"])
        assert told == (401, endpoint.unauthorized_code, "auth", "Bearer"), name_of(endpoint)


STRANGE = [
    {"x_forwarded_for": "127.0.0.1"},
    {"x_forwarded_proto": "https"},
    {"forwarded": "for=127.0.0.1"},
    {"via": "1.1 proxy"},
    {"x_real_ip": "127.0.0.1"},
    {"x_envoy_external_address": "127.0.0.1"},
    {"cdn_loop": "x"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec_fetch_site": "cross-site"},
    {"authorization": "Bearer hf_x"},
    {"host": ""},
    {"host": "holdfast.example:8787"},
    {"host": "127.0.0.1.evil.example"},
    {"x_dev_user": ""},
    {"x_dev_user": "an na"},
    {"x_dev_user": "a" * 65},
]


async def test_a_forwarded_or_strange_request_is_nobodys(call):
    for header in STRANGE:
        assert (await call.get("/api/v1/tasks")).status == 200, header
        assert (await call.get("/api/v1/tasks", **header)).status == 401, header


async def test_two_names_or_two_developers_are_nobodys(call):
    for name, value in (("x-dev-user", "berta"), ("host", "evil.example")):

        def ask(name=name, value=value):
            connection = call.open()
            connection.putrequest("GET", "/api/v1/tasks")
            connection.putheader("x-dev-user", "anna")
            connection.putheader(name, value)
            connection.endheaders()
            status = connection.getresponse().status
            connection.close()
            return status

        assert await asyncio.to_thread(ask) in (400, 401)


async def test_a_page_of_this_machine_is_fine(call):
    for origin in ("http://localhost:5173", "http://127.0.0.1", "http://[::1]:80"):
        assert (await call.get("/api/v1/tasks", origin=origin, sec_fetch_site="same-origin")).status == 200, origin


async def test_loopback_names_are_fine(call):
    for host in ("localhost", "127.0.0.1:1", "[::1]:8787", "LOCALHOST:3"):
        assert (await call.get("/api/v1/tasks", host=host)).status == 200, host


HOME = {"client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8787), "host": "localhost", "x-dev-user": "anna"}


@pytest.mark.parametrize(
    ("changes", "settings", "is_known"),
    [
        ({}, {}, True),
        ({"client": ("::1", 5), "server": ("::1", 8787), "host": "[::1]:8787"}, {"host": "::1"}, True),
        ({"client": ("10.0.0.9", 5)}, {}, False),
        ({"client": ("::ffff:10.0.0.9", 5)}, {}, False),
        ({"client": None}, {}, False),
        ({"server": ("10.0.0.1", 8787)}, {}, False),
        ({"server": None}, {}, False),
        ({}, {"host": "0.0.0.0"}, False),
        ({}, {"env": "production"}, False),
        ({"host": "holdfast.example"}, {}, False),
        ({"x-forwarded-for": "127.0.0.1"}, {}, False),
        ({"x-dev-user": "anna\n"}, {}, False),
    ],
    ids=str,
)
def test_every_condition_counts(changes, settings, is_known):
    told = {**HOME, **changes}
    scope = {"type": "http", "client": told.pop("client"), "server": told.pop("server")}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in told.items()]
    found = developer(Request(scope), Settings(**{"env": "local", **settings}))
    assert (found is not None) == is_known
    assert found is None or (found.actor, found.tenant_id, found.may) == ("dev:anna", 1, frozenset(Access))


class TestProduction:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(port=0)

    async def test_the_header_of_developers_is_ignored(self, call):
        assert (await call.get("/api/v1/tasks")).status == 401
        assert (await call.post("/internal/workers", {})).status == 401
        assert (await call.get("/healthz")).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "holdfast.example"])
def test_local_beyond_loopback_is_refused(host):
    with pytest.raises(InvalidSettings, match="administrator"):
        require_safe_address(Settings(env="local", host=host))
    with pytest.raises(InvalidSettings, match="administrator"):
        require_safe_address(Settings(env="local", internal_host=host))
    require_safe_address(Settings(env="production", host=host))


def test_what_is_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("", "10.0.0.1", "localhost.example", "0.0.0.0", "::")))


class TestElsewhere:
    """The guard behind the start-up check: with ENV local on another address nobody would get in either."""

    async def test_a_server_bound_elsewhere_ignores_the_header(self, engine, monkeypatch):
        from dataclasses import replace

        monkeypatch.setattr("holdfast.server.app.require_safe_address", lambda _settings: None)
        monkeypatch.setattr("holdfast.server.auth.authenticator.require_some_identity", lambda *_args, **_options: None)
        monkeypatch.setattr(engine, "settings", replace(engine.settings, host="0.0.0.0"))
        async with serving(engine) as url:
            from tests.server.conftest import Caller

            answer = await Caller(url.replace("0.0.0.0", "127.0.0.1")).get("/api/v1/tasks")
        assert answer.status == 401


async def test_errors_are_problems(call):
    answer = await call.get("/api/v1/tasks/999")
    assert (answer.status, answer.headers["content-type"]) == (404, "application/problem+json")
    body = answer.json
    assert (body["code"], body["category"], body["status"], body["title"]) == (
        "task_not_found",
        "not_found",
        404,
        "Not Found",
    )
    assert body["type"] == "urn:holdfast:problem:task_not_found" and "999" in body["detail"]


async def test_unknown_paths_and_methods_are_problems_too(call):
    answer = await call.get("/nowhere")
    assert (answer.status, answer.json["code"]) == (404, "path_not_found")
    answer = await call("DELETE", "/api/v1/tasks")
    assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert (answer.json["status"], answer.json["title"]) == (405, "Method Not Allowed")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("x"), 404),
        (LeaseLost("x"), 409),
        (Unavailable("x"), 503),
        (WaitTimeout("x"), 503),
        (InvalidSettings("x"), 400),
        (HoldfastError("x"), 500),
    ],
)
def test_every_error_has_a_status(error, status):
    assert status_of(error) == status == problem(error).status_code


def test_every_branch_of_the_tree_is_in_the_table():
    branches = set(HoldfastError.__subclasses__())
    assert branches <= {kind for kind, _ in STATUSES}


def test_fields_of_an_error_cannot_replace_the_problem():
    body = problem(NotFound("There is none.", code="x", status="fine", winner="bob")).body
    assert b'"status":404' in body and b'"winner":"bob"' in body


async def test_what_nobody_foresaw_is_answered_without_details(call, monkeypatch, caplog):
    async def burst(*_args, **_kwargs):
        raise RuntimeError("secret")

    monkeypatch.setattr("holdfast.engine.queries.tasks.task_page", burst)
    answer = await call.get("/api/v1/tasks")
    assert (answer.status, answer.json["code"], b"secret" in answer.body) == (500, "internal_error", False)
    assert "secret" in caplog.text


async def test_a_database_that_is_away_is_said_so(call, monkeypatch):
    async def refuse(*_args, **_kwargs):
        raise ConnectionRefusedError("no")

    monkeypatch.setattr("holdfast.engine.queries.tasks.task_page", refuse)
    answer = await call.get("/api/v1/tasks")
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "database_unavailable", "1")


BAD_BODIES = [
    (b"{", {}, 400, "invalid_body"),
    (b"[]", {}, 400, "invalid_body"),
    (b'{"worker_id": []}', {}, 400, "invalid_body"),
    (b"{}", {"content_type": "text/plain"}, 415, "body_not_json"),
    (b'"' + b"x" * 70_000 + b'"', {}, 413, "body_too_large"),
    (b'{"unknown":' + b"[" * 20_000 + b"]" * 20_000 + b"}", {}, 400, "payload_too_deep"),
]


async def test_a_bad_body_is_refused(call):
    for body, headers, status, code in BAD_BODIES:
        answer = await call.post("/internal/task-claim", body, **headers)
        assert (answer.status, answer.json["code"]) == (status, code), body[:20]


async def test_of_a_key_given_twice_the_last_counts_and_is_stored_alone(call, worker, harness, engine):
    """Nobody who looks at what is stored sees another value than the one that was checked."""
    task = await harness.enqueue(a_task())
    claim = b'{"worker_id": "0", "worker_id": %s}' % worker.encode()
    [given] = (await call.post("/internal/task-claim", claim)).json["tasks"]
    assert given["task_id"] == task.task_id
    lease = ", ".join(f'"{name}": {json.dumps(given[name])}' for name in ("task_id", "attempt", "lease_token"))
    report = f'{{{lease}, "status": "failed", "status": "completed", "outputs": {{"a": 1, "a": 2}}}}'
    assert (await call.post("/internal/task-complete", report.encode())).status == 200
    assert await engine.database.fetchval("select output from holdfast.attempt") == b'{"a":2}'
    await engine.catalog.declare(engine.tenant_id, "shop.charge", "default", RetryPolicy(), "1")
    body = b'{"action": "shop.charge", "queue": "no way", "queue": "mail", "input": {"a": 1, "a": 2}}'
    handed_in = await call.post("/api/v1/tasks", body)
    assert (handed_in.status, handed_in.json["queue"]) == (201, "mail")
    stored = "select input from holdfast.body where task_id = $1"
    assert await engine.database.fetchval(stored, int(handed_in.json["task_id"])) == b'{"a":2}'


async def test_a_body_without_a_declared_length_has_the_same_limit(call):
    connection = call.open()
    try:
        headers = {**call.headers, "content-type": "application/json", "transfer-encoding": "chunked"}

        def ask():
            connection.request("POST", "/internal/task-claim", iter([b"x" * 9_000] * 10), headers, encode_chunked=True)
            return connection.getresponse().status

        assert await asyncio.to_thread(ask) == 413
    finally:
        connection.close()


async def test_health_and_readiness(call, engine):
    assert ((await call.get("/healthz")).json, (await call.get("/readyz")).json) == (
        {"status": "ok"},
        {"status": "ready"},
    )
    await engine.database.fetch("delete from holdfast.migration")
    answer = await call.get("/readyz")
    assert (answer.status, answer.json["code"]) == (503, "schema_outdated")
    assert (await call.get("/healthz")).status == 200


async def test_a_taken_port_is_said_at_once(engine, call, monkeypatch):
    from dataclasses import replace

    port = int(call.url.rpartition(":")[2])
    monkeypatch.setattr(engine, "settings", replace(engine.settings, port=port))
    with pytest.raises(Unavailable, match="Cannot listen"):
        async with serving(engine):
            pass
