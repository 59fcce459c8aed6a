"""A worker killed with SIGKILL at every point between gate, send and receipt: one key, one receipt, at a real provider.

The worker is a process of its own, the provider a real HTTP server that honours idempotency keys. Afterwards another
worker goes on, and whatever happened before, the provider did the work once and knows one key. A worker `elsewhere` has
no database but a server to ask, and so has who goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.worker.servers import HttpServer

from holdfast.authoring.loader import load_app
from holdfast.client.client import Client
from holdfast.engine.effects.gate import list_effects
from holdfast.settings.settings import Settings
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.start_orders import Orders
from holdfast.worker.transport.http import HttpTransport

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
APP = str(HERE / "victim_app.py")

POINTS = {
    "before the gate": ("before", "open_effect"),
    "after the gate, before sending": ("after", "open_effect"),
    "sent, before the provider did it": ("provider", "received"),
    "done, before the provider answered": ("provider", "done"),
    "answered, before the receipt is kept": ("before", "answer_effect"),
    "after the receipt, before completion": ("after", "answer_effect"),
}
SENT = {
    "sent, before the provider did it",
    "done, before the provider answered",
    "answered, before the receipt is kept",
}


class Provider:
    """Does what it is asked once for each key, and may kill who asks at a point of its own."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.done: dict[str, dict] = {}
        self.deadly = ""
        self.victim: subprocess.Popen | None = None
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps(provider.receive(self.headers["Idempotency-Key"], body)).encode()
                with suppress(OSError):  # who asked may be dead by now
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *_words) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def receive(self, key: str, body: dict) -> dict:
        self.asked.append(key)
        self._strike("received")
        if self.victim is None or self.deadly != "received":
            self.done.setdefault(key, {"receipt": len(self.done) + 1, **body})
        self._strike("done")
        return self.done.get(key, {})

    def _strike(self, point: str) -> None:
        if self.deadly == point and self.victim is not None:
            self.victim.kill()
            self.victim.wait()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def http(monkeypatch):
    made = Provider()
    monkeypatch.setenv("PROVIDER_URL", made.url)
    yield made
    made.close()


@pytest.fixture
def start_victim(holdfast_url):
    started = []

    def start(when: str, statement: str, url: str = holdfast_url) -> subprocess.Popen:
        command = [sys.executable, str(HERE / "victim_main.py"), url, APP, when, statement]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def server(holdfast_url):
    """A server for workers that have no database."""
    made = HttpServer(holdfast_url, Settings(url=holdfast_url), loops=False)
    yield made
    made.stop()


@pytest.fixture
def survivor(engine, holdfast_url):
    """A worker that goes on until the task is over."""

    async def finish(client, task, url=""):
        app = load_app(APP)
        settings = Settings(url=holdfast_url)
        orders = Orders(app_ref=APP, url=holdfast_url, settings=settings, slots=2, queues=None, name="survivor")
        line = HttpTransport(url, Settings(env="local")) if url else engine
        worker = Worker(line, app.actions, slots=2, name="survivor", isolator=Isolated(orders))
        running = asyncio.create_task(worker.run())
        try:
            return await task.result(timeout=30)
        finally:
            worker.stop()
            await running

    return finish


# Five and the four kinds have no common divisor, so the fast cases are of every kind.
@pytest.mark.representative(one_in=5)
@pytest.mark.parametrize("kind", ["coroutine", "thread", "process", "elsewhere"])
@pytest.mark.parametrize("point", POINTS)
async def test_one_key_and_one_receipt(point, kind, http, server, start_victim, survivor, engine, harness, clock):
    when, what = POINTS[point]
    url = server.start() if kind == "elsewhere" else ""
    victim = await asyncio.to_thread(start_victim, when, what, *filter(None, [url]))
    if when == "provider":
        http.deadly, http.victim = what, victim
    async with Client(Settings(url=engine.database.url), load_app(APP).actions) as client:
        task = await client.enqueue(f"victim.{'coroutine' if url else kind}", order=7)
        assert await asyncio.to_thread(victim.wait, 30) == -signal.SIGKILL
        http.victim = None
        await clock.advance(seconds=11)
        assert await harness.reap_once() == 1
        left = await list_effects(engine.database, 1)
        assert [one.state for one in left] == _left(point)
        output = await survivor(client, task, url)

    assert output == {"receipt": 1, "order": 7}
    assert list(http.done) == list(set(http.asked)), "the provider was asked under more than one key"
    assert len(http.asked) == (2 if point in SENT else 1)
    [effect] = await list_effects(engine.database, 1)
    assert (effect.state, effect.idempotency_key) == ("done", http.asked[0])
    assert json.loads(bytes(effect.receipt)) == output


def _left(point: str) -> list[str]:
    """How the effect is shown while nobody knows better than the database."""
    if point == "before the gate":
        return []
    return ["done"] if point.startswith("after the receipt") else ["unknown"]


async def test_a_coroutine_in_a_process_asks_its_worker(http, survivor, engine):
    async with Client(Settings(url=engine.database.url), load_app(APP).actions) as client:
        task = await client.enqueue("victim.everything", order=7)
        assert await survivor(client, task) == [14, "effect_key_reused", True, True]
