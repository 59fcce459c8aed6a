"""The door itself: before the body, at every path, on every address, and with bounded patience."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from tests.server.conftest import Caller, path_of
from tests.waiting import eventually

from holdfast.core.limits.token_bucket import BURST
from holdfast.engine.identity import tokens
from holdfast.errors import InvalidSettings
from holdfast.server.app import ENDPOINTS, application, listening, serving
from holdfast.server.auth.caller import Access
from holdfast.server.auth.client_address import throttle_key
from holdfast.server.auth.login_throttle import EXHAUSTED_CHECKS_MAX
from holdfast.server.auth.trusted_proxies import Proxies
from holdfast.server.endpoint import Endpoint, ServerState, reply, route
from holdfast.settings.settings import AuthSettings, HttpSettings, Settings

PUBLIC = {"/", "/healthz", "/readyz"}


@pytest.fixture
def holdfast_settings():
    return Settings(port=0)


async def test_without_a_token_exactly_the_public_paths_answer(call):
    for endpoint in ENDPOINTS:
        answer = await call(endpoint.method, path_of(endpoint), x_dev_user=None)
        expected = 200 if endpoint.path in PUBLIC else 401
        assert answer.status == expected, (endpoint.method, endpoint.path)
        if expected == 401:
            assert answer.json["code"] == endpoint.unauthorized_code


ODD = [
    "//healthz",
    "/healthz/",
    "/HEALTHZ",
    "/healthz//",
    "/Healthz",
    "/..%2fhealthz",
    "/%2e%2e/healthz",
    "/../healthz",
    "/./readyz",
    "/healthz;x",
    "/healthz%00",
    "/healthz%20",
    "/api/v1/tasks/healthz",
    "/api/v1/tasks/x/health",
    "/internal/healthz",
    "/api/v1/tasks/",
    "/api/v1//tasks",
    "/API/V1/TASKS",
    "/docs",
    "/openapi.json",
    "/metrics",
    "/nowhere",
]


async def test_no_other_spelling_gets_by(call):
    for path in ODD:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
            answer = await call(method, path, x_dev_user=None)
            assert (answer.status, "location" in answer.headers) == (401, False), (method, path)


async def test_another_method_of_a_public_path_is_refused(call):
    assert {(await call(method, "/healthz")).status for method in ("POST", "PUT", "DELETE", "OPTIONS")} == {401}


async def test_callers_who_are_known_learn_what_is_not_there(call, token):
    asked = call.bearing(await token("viewer"))
    assert [(await asked.get("/nowhere")).status, (await asked("DELETE", "/api/v1/tasks")).status] == [404, 405]


async def test_the_answer_comes_before_the_body(call):
    """Only the headers are sent, of a body that would be much too large."""

    def ask(path):
        place = urlsplit(call.url)
        with socket.create_connection((place.hostname, place.port), timeout=20) as line:
            head = (
                f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000000000\r\n"
            )
            line.sendall(f"{head}\r\n".encode())
            return line.recv(12)

    for path in ("/internal/exchange", "/api/v1/tasks/1/cancel"):
        assert await asyncio.to_thread(ask, path) == b"HTTP/1.1 401"


async def test_there_are_no_websockets(call):
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
    for path in ("/api/v1/events", "/ws", "/healthz/ws"):
        answer = await call.get(path, x_dev_user=None, sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==", **upgrade)
        assert answer.status == 401, path


async def test_a_route_may_have_a_code_of_its_own_for_nobody(engine, monkeypatch):
    async def handler(_asked):
        return reply({})

    endpoint = Endpoint(
        method="POST",
        path="/dashboard/x",
        access=Access.OPERATOR,
        handler=handler,
        unauthorized_code="dashboard_unauthorized",
    )
    monkeypatch.setattr("holdfast.server.app.ENDPOINTS", (endpoint,))
    async with serving(engine) as url:
        call = Caller(url)
        answer = await call.post("/dashboard/x", {}, x_dev_user=None)
        assert (answer.status, answer.json["code"]) == (401, "dashboard_unauthorized")
        answer = await call.post("/dashboard/x", {}, authorization="Bearer hf_wrong")
        assert (answer.status, answer.json["code"]) == (401, "dashboard_unauthorized")


def test_there_is_no_route_without_its_access():
    made = application(None)
    assert len(made.routes) == len(ENDPOINTS) and not made.router.redirect_slashes
    with pytest.raises(TypeError, match="access"):
        Endpoint(method="GET", path="/x", handler=reply)
    assert route(ENDPOINTS[0], ServerState).path == ENDPOINTS[0].path


class TestPatience:
    """Who guesses has to wait."""

    async def wrong(self, call, number=0):
        return await call.bearing(f"hf_{number:012x}_{'x' * 43}").get("/api/v1/tasks")

    async def test_too_many_wrong_tokens_and_the_address_waits(self, call, ticks):
        found = [(await self.wrong(call, number)).status for number in range(BURST + 2)]
        assert found == [401] * BURST + [429] * 2
        answer = await self.wrong(call)
        assert (answer.json["code"], answer.headers["retry-after"]) == ("too_many_attempts", "6")
        ticks.advance(6)
        assert [(await self.wrong(call)).status for _ in range(2)] == [401, 429]

    async def test_guessing_at_once_gets_nobody_further(self, call):
        answers = await asyncio.gather(*(self.wrong(call, number) for number in range(40)))
        assert [answer.status for answer in answers].count(401) == BURST

    async def test_a_token_in_use_is_not_shut_out_by_a_neighbour(self, call, token, ticks):
        asked = call.bearing(await token("viewer"))
        assert (await asked.get("/api/v1/tasks")).status == 200
        while (await self.wrong(call)).status == 401:
            pass
        for _ in range(3):
            ticks.advance(AuthSettings().token_cache_seconds)
            assert (await asked.get("/api/v1/tasks")).status == 200
            while (await self.wrong(call)).status == 401:
                pass

    async def test_a_token_that_nobody_saw_yet_is_not_shut_out_either(self, call, token):
        """Behind a proxy all have one address: whoever presents rubbish there shuts out nobody."""
        while (await call.bearing("x").get("/api/v1/tasks")).status == 401:
            pass
        texts = [await token("viewer", f"v{number}") for number in range(BURST)]
        answers = await asyncio.gather(
            *(call.bearing(text).get("/api/v1/tasks") for text in texts), *(self.wrong(call, n) for n in range(BURST))
        )
        assert [answer.status for answer in answers] == [200] * BURST + [429] * BURST

    async def test_a_token_that_ended_counts_as_guessing_from_then_on(self, call, token, engine, ticks):
        asked = call.bearing(await token("viewer", "old"))
        assert (await asked.get("/api/v1/tasks")).status == 200
        await tokens.revoke_token(engine.database, 1, "old", actor="ada")
        ticks.advance(AuthSettings().token_cache_seconds)
        found = [(await asked.get("/api/v1/tasks")).status for _ in range(BURST + 2)]
        assert found == [401] * (BURST + 1) + [429]

    async def test_right_tokens_cost_no_patience(self, call, token):
        texts = [await token("viewer", f"v{number}") for number in range(BURST * 2)]
        assert {(await call.bearing(text).get("/api/v1/tasks")).status for text in texts} == {200}

    @pytest.mark.parametrize("tokens_made", [1, BURST * 3])
    async def test_right_tokens_that_come_at_once_wait_for_each_other(self, call, token, monkeypatch, tokens_made):
        """However slow the database is: of one token there is one look up, and of many all get their turn."""
        texts = [await token("viewer", f"v{number}") for number in range(tokens_made)] * (BURST * 3 // tokens_made)
        began, released, real = [], asyncio.Event(), tokens.find_bearer

        async def slow(*arguments):
            began.append(arguments)
            await released.wait()
            return await real(*arguments)

        monkeypatch.setattr("holdfast.server.auth.authenticator.find_bearer", slow)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(texts)))
        asking = [asyncio.create_task(call.bearing(text).get("/api/v1/tasks")) for text in texts]

        async def are_under_way():
            return len(began) == min(tokens_made, BURST + EXHAUSTED_CHECKS_MAX)

        await eventually(are_under_way)
        released.set()
        assert {answer.status for answer in await asyncio.gather(*asking)} == {200}

    async def test_saying_nothing_costs_no_patience(self, call):
        found = {(await call.get("/api/v1/tasks", x_dev_user=None)).status for _ in range(BURST * 2)}
        assert found == {401}

    async def test_wrong_capabilities_count_too(self, call):
        text = f"hfc_1.2.3.9999999999_{'x' * 43}"
        found = [(await call.bearing(text).post("/internal/heartbeat", {})).status for _ in range(BURST + 1)]
        assert found == [401] * BURST + [429]


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_addresses_are_counted_by_neighbourhood(peer, counted):
    assert throttle_key(peer) == counted


def asked_by(peer: str, *forwarded: str) -> Request:
    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    return Request({"type": "http", "client": (peer, 5), "headers": headers})


@pytest.mark.parametrize(
    ("peer", "forwarded", "counted"),
    [
        ("10.0.0.5", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.5", ["8.8.8.8, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.5", ["192.0.2.7, 10.0.0.6"], "192.0.2.7"),
        ("10.0.0.5", ["8.8.8.8", "192.0.2.7, 10.0.0.6"], "192.0.2.7"),
        ("10.0.0.5", ["192.0.2.7:5123"], "192.0.2.7"),
        ("10.0.0.5", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("::ffff:10.0.0.5", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.5", ["192.0.2.7, unknown"], "10.0.0.5"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("192.0.2.9", ["8.8.8.8"], "192.0.2.9"),
        ("", ["8.8.8.8"], ""),
    ],
)
def test_only_a_trusted_proxy_says_whose_address_is_counted(peer, forwarded, counted):
    assert Proxies.of(["10.0.0.0/29"]).peer(asked_by(peer, *forwarded)) == counted
    assert Proxies.of([]).peer(asked_by(peer, *forwarded)) == peer


def test_a_proxy_that_is_no_address_is_refused():
    with pytest.raises(InvalidSettings, match="trusted_proxies"):
        Proxies.of(["the-proxy"])


class TestBehindAProxy:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(port=0, http=HttpSettings(trusted_proxies=("127.0.0.1",)))

    async def test_each_address_behind_it_has_tries_of_its_own(self, call):
        async def wrong(peer):
            return (await call.bearing("x").get("/api/v1/tasks", x_forwarded_for=peer)).status

        assert [await wrong("192.0.2.1") for _ in range(BURST + 1)] == [401] * BURST + [429]
        assert await wrong("192.0.2.2") == 401


class TestAddresses:
    """Nothing listens on a network without anybody who could sign in."""

    @pytest.fixture
    def holdfast_settings(self):
        return Settings(port=0, host="0.0.0.0")

    async def refused(self, engine) -> str:
        with pytest.raises(InvalidSettings) as refused:
            async with serving(engine):
                pass
        return refused.value.code

    async def test_without_any_identity_the_server_does_not_start(self, engine):
        assert await self.refused(engine) == "no_authentication"

    async def test_a_token_that_ended_does_not_count(self, engine, token, clock):
        await token("viewer", "soon", expires_seconds=60)
        await token("viewer", "gone")
        await tokens.revoke_token(engine.database, 1, "gone", actor="ada")
        await clock.advance(seconds=61)
        assert await self.refused(engine) == "no_authentication"

    async def test_with_a_token_it_starts_and_developers_are_nobody(self, engine, token):
        text = await token("viewer")
        async with serving(engine) as url:
            call = Caller(url.replace("0.0.0.0", "127.0.0.1"))
            assert (await call.get("/api/v1/tasks")).status == 401
            assert (await call.bearing(text).get("/api/v1/tasks")).status == 200

    async def test_with_an_issuer_it_starts(self, engine, monkeypatch):
        auth = AuthSettings(google_client_ids=("us",))
        monkeypatch.setattr(engine, "settings", replace(engine.settings, auth=auth))
        async with serving(engine) as url:
            assert (await Caller(url.replace("0.0.0.0", "127.0.0.1")).get("/healthz")).status == 200

    async def test_the_workers_address_counts_as_well(self, engine, monkeypatch):
        settings = Settings(port=0, internal_host="0.0.0.0", internal_port=0)
        monkeypatch.setattr(engine, "settings", settings)
        assert await self.refused(engine) == "no_authentication"


class TestTwoListeners:
    """Workers have an address of their own, and the other one knows nothing of them."""

    @pytest.fixture
    def holdfast_settings(self):
        return Settings(port=0, internal_port=0)

    async def test_each_address_offers_its_own(self, engine, token):
        worker, viewer = await token("worker"), await token("viewer")
        async with listening(engine) as addresses:
            assert addresses.url != addresses.internal_url
            public, internal = Caller(addresses.url), Caller(addresses.internal_url)
            for call in (public, internal):
                assert {(await call.get(path)).status for path in ("/healthz", "/readyz")} == {200}
            assert (await public.bearing(viewer).get("/api/v1/tasks")).status == 200
            assert (await public.bearing(worker).post("/internal/workers", {})).status == 404
            assert (await internal.bearing(worker).post("/internal/workers", {})).status == 200
            assert (await internal.bearing(viewer).get("/api/v1/tasks")).status == 404
            assert (await internal.bearing(viewer).post("/internal/workers", {})).status == 403

    def test_the_address_is_made_of_what_is_set(self):
        assert Settings().internal_address is None
        assert Settings(internal_port=9).internal_address == ("127.0.0.1", 9)
        assert Settings(internal_host="::1").internal_address == ("::1", 8788)


async def test_no_credential_is_ever_logged(call, token, caplog, capsys):
    caplog.set_level("DEBUG")
    right, wrong = await token("viewer"), f"hf_{'0' * 12}_{'canary' * 7}x"
    for text in (right, wrong):
        await call.bearing(text).get("/api/v1/tasks")
        await call.bearing(text).post("/api/v1/tasks/1/cancel", {})
        await call.bearing(text).get("/nowhere")
    said = caplog.text + "".join(capsys.readouterr())
    assert right[-43:] not in said and "canary" not in said
