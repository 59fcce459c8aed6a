"""The real server on a free loopback port, asked over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.engine.identity.tokens import create_token
from holdfast.server.app import serving
from holdfast.settings.settings import Settings


def path_of(endpoint: Any, number: str = "1") -> str:
    """The path of a route, with this number for whatever it wants to know."""
    return re.sub(r"\{[^}]+\}", number, endpoint.path)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Caller:
    """Asks the server as `anna`, unless told otherwise. Every request has a connection of its own."""

    url: str
    headers: Mapping[str, str] = field(default_factory=lambda: {"x-dev-user": "anna"})

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await asyncio.to_thread(self._ask, method, path, body, given)

    def open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=20)

    def _ask(self, method: str, path: str, body: Any, headers: Mapping[str, str | None]) -> Answer:
        connection = self.open()
        encoded = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {**self.headers, **({"content-type": "application/json"} if encoded is not None else {}), **headers}
        try:
            connection.request(
                method, path, encoded, {name: value for name, value in sent.items() if value is not None}
            )
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def bearing(self, credential: str) -> Caller:
        """The same server, asked with a bearer token and nothing else."""
        return Caller(self.url, {"authorization": f"Bearer {credential}"})

    async def get(self, path: str, **headers: str | None) -> Answer:
        return await self("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str | None) -> Answer:
        return await self("POST", path, body, **headers)


@pytest.fixture
def holdfast_settings():
    return Settings(env="local", port=0)


class Ticks:
    """The door's clock, in the hands of a test."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def ticks():
    return Ticks()


@pytest.fixture
async def call(engine, ticks):
    async with serving(engine, clock=ticks) as url:
        yield Caller(url)


@pytest.fixture
def token(engine):
    """Make a token: `await token("operator")` answers its text."""

    async def make(role: str, name: str | None = None, *, tenant_id: int = 1, **options: Any) -> str:
        options = {"name": name or f"a-{role}", "role": role, "actor": "ada", **options}
        return (await create_token(engine.database, tenant_id, **options)).token

    return make


@pytest.fixture
async def worker(call):
    """A registered worker elsewhere; answers its id."""
    answer = await call.post("/internal/workers", {"worker_id": "w1", "actions": ["shop.charge"], "slots": 10})
    assert answer.status == 200
    return answer.json["worker_id"]
