"""Worker processes to be killed, stopped and starved, and a journal of what their attempts did.

Every test that uses `running_worker` runs twice: with workers that have the database, and over HTTP. That is the
conformance suite of the two ways to reach the engine. Of tests with a `fleet` of processes, and of those about what
happens inside a worker, one way is fast, chosen by the test's name, and the other slow.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.tiers import chosen
from tests.waiting import eventually
from tests.worker.servers import HttpServer

import holdfast.errors
from holdfast._internal.process_tree import kill_session
from holdfast.authoring.loader import load_app
from holdfast.client.client import Client
from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.supervisor import STOP_SIGNALS
from holdfast.worker.transport.http import HttpTransport

HERE = Path(__file__).parent
WAYS = ("direct", "http")
INSIDE_THE_WORKER = {
    "test_clock.py",
    "test_executor.py",
    "test_executor_acting.py",
    "test_executor_isolated.py",
    "test_isolated.py",
    "test_overrun.py",
    "test_unsettled.py",
}
SOURCES = Path(holdfast.errors.__file__).parents[1]
LEASE_SECONDS = 1.5
TIMES = {
    "lease_seconds": LEASE_SECONDS,
    "heartbeat_seconds": 0.3,
    "poll_seconds": 0.2,
    "cancel_grace_seconds": 0.4,
    "shutdown_seconds": 20.0,
}
WAIT_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    word: str
    task_id: str
    attempt: int
    pid: int
    at: float


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, word: str | None = None) -> list[Entry]:
        text = self.path.read_text() if self.path.exists() else ""
        rows = [line.split() for line in text.splitlines()]
        found = [Entry(row[0], row[1], int(row[2]), int(row[3]), float(row[4])) for row in rows]
        return [entry for entry in found if word in (None, entry.word)]

    async def first(self, word: str, *, attempt: int = 1) -> Entry:
        """Wait for an attempt to write a word."""
        found = await eventually(lambda: [entry for entry in self.entries(word) if entry.attempt == attempt])
        return found[0]


class Fleet:
    """A parent process and its workers."""

    def __init__(
        self,
        url: str,
        folder: Path,
        app_ref: str,
        *,
        processes: int,
        slots: int,
        loops: bool,
        ignored: signal.Signals | None,
        times: dict[str, float],
    ) -> None:
        self.log_path = folder / f"fleet-{time.monotonic_ns()}.log"
        pace = {f"HOLDFAST_{name.upper()}": str(value) for name, value in times.items()}
        place = {"HOLDFAST_URL": url, "HOLDFAST_ENV": "local"}
        environment = os.environ | pace | place | {"FLEET_JOURNAL": str(folder / "journal")}
        command = [str(HERE / "fleet_main.py"), app_ref, str(processes), str(slots), "loops" if loops else "alone"]
        with self.log_path.open("wb") as log, _inheriting(ignored):
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment | {"PYTHONPATH": str(SOURCES)},
                cwd=folder,
            )
        self._seen: set[int] = set()

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def children(self) -> list[int]:
        found = _children(self.process.pid)
        self._seen |= set(found)
        return found

    async def child(self) -> int:
        """The only child, once it is there."""
        return (await eventually(self.children))[0]

    def signal(self, which: signal.Signals) -> None:
        self.process.send_signal(which)

    async def interrupt_twice(self) -> None:
        """Equal signals that nobody has heard yet count as one, so the second waits for the first."""
        self.signal(signal.SIGINT)
        await eventually(lambda: "children finish their work" in self.log)
        self.signal(signal.SIGINT)

    async def ended(self) -> int:
        """Wait for the end; the exit code."""
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), WAIT_SECONDS_MAX)

    async def is_extinct(self) -> None:
        """Wait until none of its processes is left."""
        self.children()
        await eventually(lambda: self.process.poll() is not None and all(is_over(pid) for pid in self._seen))

    def clear(self) -> None:
        self.children()
        self.process.kill()
        self.process.wait()
        for pid in self._seen:
            kill_session(pid)


@contextmanager
def _inheriting(ignored: signal.Signals | None) -> Iterator[None]:
    """Have what is started meanwhile hear every stop signal but this one, whatever this process was started with."""
    wanted = {which: signal.SIG_IGN if which is ignored else signal.SIG_DFL for which in STOP_SIGNALS}
    before = {which: signal.signal(which, how) for which, how in wanted.items()}
    try:
        yield
    finally:
        for which, how in before.items():
            signal.signal(which, how)


def is_over(pid: int) -> bool:
    """Whether a process is gone, or only waits for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _children(pid: int) -> list[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(one) for one in listed]


@pytest.fixture
def is_gone() -> Callable[[int], bool]:
    return is_over


@pytest.fixture
def app() -> Any:
    return load_app(str(HERE / "fleet_app.py"))


@pytest.fixture
def times() -> dict[str, float]:
    """Short leases, so that the tests are quick."""
    return dict(TIMES)


@pytest.fixture
def settings(holdfast_url: str, times: dict[str, float]) -> Settings:
    return Settings(url=holdfast_url, env="local", worker=WorkerSettings(**times))


@pytest.fixture
def holdfast_settings(settings: Settings) -> Settings:
    return settings


@pytest.fixture
def app_ref() -> str:
    return str(HERE / "fleet_app.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave one way of the costly tests in the fast tier, and mark the other as slow."""
    for item in items:
        if HERE in item.path.parents and not _is_fast(item):
            item.add_marker(pytest.mark.slow("the other way of the same test is fast"))


def _is_fast(item: Any) -> bool:
    is_costly = "fleet" in item.fixturenames or item.path.name in INSIDE_THE_WORKER
    has_one_way = any(marker.args[0] == "way" for marker in item.iter_markers("parametrize"))
    if not is_costly or has_one_way or "callspec" not in vars(item):
        return True
    fast = chosen(item.originalname, WAYS)
    return bool(item.callspec.params.get("way", fast) == fast)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How workers speak with their harness."""
    return str(request.param)


@pytest.fixture
def http_server(holdfast_url: str, settings: Settings) -> Iterator[Callable[..., HttpServer]]:
    """Start a server when it is first asked for; always the same one."""
    servers: list[HttpServer] = []

    def serve(*, loops: bool = False) -> HttpServer:
        if not servers:
            servers.append(HttpServer(holdfast_url, settings, loops=loops))
            servers[0].start()
        return servers[0]

    yield serve
    for one in servers:
        one.stop()


@pytest.fixture
def line(way: str, engine: Engine, settings: Settings, http_server: Callable[..., HttpServer]) -> Callable[[], Any]:
    """A new line to the harness."""
    return lambda: engine if way == "direct" else HttpTransport(http_server().url, settings)


@pytest.fixture
def running_worker(engine: Engine, app: Any, line: Callable[[], Any]) -> Callable[..., Any]:
    """Run a worker in this process, with the maintenance loops, for the length of a block."""

    @asynccontextmanager
    async def run(*, app: Any = app, line: Any = None, **options: Any) -> AsyncIterator[Worker]:
        worker = Worker(line or new_line(), app.actions, **options)
        working, loops = asyncio.create_task(worker.run()), asyncio.create_task(Loops(engine).run())
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait([working, ready], return_when="FIRST_COMPLETED")
        try:
            yield worker
        finally:
            ready.cancel()
            worker.stop(within_seconds=0)
            await working
            loops.cancel()
            await asyncio.gather(loops, return_exceptions=True)

    new_line = line
    return run


@pytest.fixture
def client_of(settings: Settings) -> Callable[[Any], Client]:
    return lambda app: Client(settings, app.actions)


@pytest.fixture(params=["coroutine", "thread"])
def kind(request: pytest.FixtureRequest) -> str:
    """Where an action's code runs in the worker's process."""
    return str(request.param)


@pytest.fixture
def result_of(running_worker: Callable[..., Any], client_of: Callable[[Any], Client]) -> Callable[..., Any]:
    """Run one task of an app's action `act`."""

    async def run(app: Any, **given: Any) -> Any:
        async with client_of(app) as client, running_worker(app=app):
            return await (await client.enqueue("local.act", **given)).result(20)

    return run


@pytest_asyncio.fixture
async def client(app: Any, settings: Settings) -> AsyncIterator[Client]:
    async with Client(settings, app.actions) as opened:
        yield opened


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of this test; at its end, no attempt ever ran beside another of its task."""
    made = Journal(tmp_path / "journal")
    yield made
    assert made.entries("overlap") == []


@pytest.fixture
def fleet(
    way: str,
    holdfast_url: str,
    tmp_path: Path,
    journal: Journal,
    http_server: Callable[..., HttpServer],
    times: dict[str, float],
) -> Iterator[Callable[..., Fleet]]:
    """Start a parent with workers; whatever is left of it at the end is killed."""
    fleets: list[Fleet] = []

    def begin(
        *,
        app_ref: str = str(HERE / "fleet_app.py"),
        processes: int = 1,
        slots: int = 20,
        loops: bool = True,
        ignored: signal.Signals | None = None,
    ) -> Fleet:
        url = holdfast_url if way == "direct" else http_server(loops=loops).url
        made = Fleet(
            url, tmp_path, app_ref, processes=processes, slots=slots, loops=loops, ignored=ignored, times=times
        )
        fleets.append(made)
        return made

    yield begin
    for one in fleets:
        one.clear()
        print(one.log)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that attempts wait for; `touch` it to let them pass."""
    return tmp_path / "gate"
