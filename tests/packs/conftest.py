"""A worker for a pack written by the test, and a web server that answers what it is told to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import pytest
import pytest_asyncio

from holdfast.authoring.packs.load import load_pack
from holdfast.client.client import Client
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.start_orders import Orders


@pytest.fixture
def settings(holdfast_url) -> Settings:
    quick = WorkerSettings(cancel_grace_seconds=0.4, poll_seconds=0.2, heartbeat_seconds=0.3)
    return Settings(url=holdfast_url, worker=quick)


@pytest.fixture
def holdfast_settings(settings) -> Settings:
    return settings


@pytest.fixture
def working(engine, settings, tmp_path):
    """Write a pack and work on it: `async with working({"x": "runtime: …"}) as client`."""

    @asynccontextmanager
    async def run(actions: dict[str, str], **files: str):
        folder = tmp_path / "mypack"
        written = {f"actions/{name}.yaml": f"name: {name}\n{dedent(text).lstrip()}" for name, text in actions.items()}
        for name, text in {"pack.yaml": "name: mypack\n", **written, **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(dedent(text))
        app = load_pack(folder)
        orders = Orders(
            app_ref="", url=settings.url, settings=settings, slots=5, queues=None, name="", packs=[str(folder)]
        )
        worker = Worker(engine, app.actions, slots=5, isolator=Isolated(orders))
        task = asyncio.create_task(worker.run())
        try:
            async with Client(settings, app.actions) as client:
                yield client
        finally:
            worker.stop(within_seconds=0)
            await task

    return run


class Web:
    """A server on this machine. `answers` by path: (status, headers, body); `seen` are whole requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], str]] = {}
        self.seen: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(x.split(":")[1]) for x in head.splitlines() if x.lower().startswith("content-length")), 0)
        self.seen.append(head + (await reader.readexactly(length)).decode())
        path = head.split(" ")[1].partition("?")[0]
        if path == "/hang":
            await asyncio.Event().wait()
        status, headers, body = self.answers.get(path, (404, {}, "nothing here"))
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        await writer.drain()
        writer.close()


@pytest_asyncio.fixture
async def web():
    made = Web()
    serving: set[asyncio.Task[None]] = set()

    def on_connection(reader, writer):
        task = asyncio.ensure_future(made.serve(reader, writer))
        serving.add(task)

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    server.close()
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture
def is_running():
    """Whether a process lives; one that only waits to be buried does not."""

    def look(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return look
