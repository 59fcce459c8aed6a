"""Carriers on real servers, workers that use them, and a count of executions kept outside the database."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.wakeups.carriers import Carrier, Own, Postgres, Redis, Sqs
from tests.wakeups.servers import RedisServer, SqsServer

import holdfast as hf
from holdfast.client.client import Client
from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.wakeups.outbox import write_hints
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.wakeups.carriers import address_for, open_transport
from holdfast.worker.runtime.worker import Worker

NO_REDIS = "A Redis server is not installed: `apt-get install redis-server`, or `brew install redis`"
WAIT_SECONDS_MAX = 20.0


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip(NO_REDIS)
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sqs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    server = SqsServer(tmp_path_factory.mktemp("sqs"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def aws_of_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials that open nothing, and none of this machine's own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def _carrier(name: str, request: pytest.FixtureRequest) -> Carrier:
    if name in ("postgres", "own"):
        return Postgres() if name == "postgres" else Own()
    server = request.getfixturevalue(f"{name}_server")
    if server.process is None:
        server.start()
    if name == "redis":
        return Redis(server)
    request.getfixturevalue("aws_of_nobody")
    return Sqs(server)


@pytest.fixture(params=["postgres", "sqs", "redis"])
def carrier(request: pytest.FixtureRequest) -> Carrier:
    return _carrier(request.param, request)


@pytest.fixture(params=["sqs", "redis"])
def queue(request: pytest.FixtureRequest) -> Carrier:
    """A carrier with messages of its own."""
    return _carrier(request.param, request)


@pytest.fixture
def executions() -> Counter[tuple[str, int]]:
    """How often each attempt of each task ran, counted by the attempts themselves."""
    return Counter()


@pytest.fixture
def app(executions: Counter[tuple[str, int]]) -> hf.App:
    app = hf.App("shop")

    @app.action()
    async def steady(ctx: hf.Context) -> str:
        executions[ctx.task_id, ctx.attempt] += 1
        return "done"

    @app.action(retry={"base_backoff_secs": 0.05, "jitter_factor": 0.0})
    async def flaky(ctx: hf.Context) -> str:
        executions[ctx.task_id, ctx.attempt] += 1
        if ctx.attempt == 1:
            raise ConnectionError("at first")
        return "done"

    return app


@pytest.fixture
def settings(carrier: Carrier, holdfast_url: str) -> Settings:
    return settings_of(carrier, holdfast_url)


def settings_of(carrier: Carrier, url: str, *, poll_seconds: float = 0.1) -> Settings:
    times = WorkerSettings(
        lease_seconds=3.0, heartbeat_seconds=1.0, poll_seconds=poll_seconds, shutdown_seconds=10.0, slots=4
    )
    return Settings(url=url, worker=times, wake=carrier.settings())


class Fleet:
    """Two workers and the loops on one carrier, and a client beside them."""

    def __init__(self, engine: Engine, client: Client) -> None:
        self.engine = engine
        self.client = client

    async def work_off(self, *, steady: int, flaky: int) -> list[str]:
        """Enqueue, wait for every result, and name the tasks."""
        tasks = [await self.client.enqueue("shop.steady") for _ in range(steady)]
        tasks += [await self.client.enqueue("shop.flaky") for _ in range(flaky)]
        assert await asyncio.gather(*(task.result(WAIT_SECONDS_MAX) for task in tasks)) == ["done"] * len(tasks)
        return [task.task_id for task in tasks]


@asynccontextmanager
async def _fleet(app: hf.App, settings: Settings, is_external: bool) -> AsyncIterator[Fleet]:
    assert settings.url is not None
    async with Engine(settings.url, settings) as engine, Client(settings, app.actions) as client:
        if is_external:
            await write_hints(engine, True, actor="test", reason="")
        workers = [Worker(engine, app.actions) for _ in range(2)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        loops = asyncio.create_task(Loops(engine).run())
        await asyncio.wait_for(asyncio.gather(*(worker.ready.wait() for worker in workers)), WAIT_SECONDS_MAX)
        try:
            yield Fleet(engine, client)
        finally:
            for worker in workers:
                worker.stop(within_seconds=5)
            await asyncio.gather(*running)
            loops.cancel()
            await asyncio.gather(loops, return_exceptions=True)


@pytest.fixture
async def transport(queue):
    settings = queue.settings(visibility_seconds=1)
    made = open_transport(settings, address_for(settings, "default"))
    yield made
    await made.close()


@pytest.fixture
def fleet(app: hf.App, carrier: Carrier, holdfast_url: str) -> Callable[..., Any]:
    """Start a fleet on the test's carrier for the length of a block."""

    def begin(*, poll_seconds: float = 0.1) -> Any:
        return _fleet(app, settings_of(carrier, holdfast_url, poll_seconds=poll_seconds), carrier.is_external)

    return begin
