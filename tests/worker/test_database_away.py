"""A database that restarts or vanishes under workers: they come back by themselves; nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from tests.own_server import OwnServer
from tests.worker.conftest import TIMES

from holdfast.client.client import Client, Task
from holdfast.engine.engine import Engine
from holdfast.engine.queries.verify import verify
from holdfast.errors import Unavailable
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.testing.databases import remove_home, throw_away_home

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("own_server")]


@pytest.fixture
def server():
    home = throw_away_home()
    made = OwnServer(home)
    yield made
    made.close()
    remove_home(home)


@pytest.fixture
def holdfast_url(server):
    return server.url


@pytest_asyncio.fixture
async def own_client(server, app, times):
    settings = Settings(url=server.url, worker=WorkerSettings(**times))
    async with Engine(server.url, settings, migrates=True):
        pass
    async with Client(settings, app.actions) as client:
        yield client


async def repeated(step):
    """Repeat what is safe to repeat until the database takes it."""
    while True:
        try:
            return await step()
        except Unavailable:
            await asyncio.sleep(0.02)


async def test_work_goes_on_through_immediate_restarts(server, fleet, own_client, eventually):
    fleet(processes=2, slots=20)
    async with under_load(own_client) as accepted:
        for _ in range(2):
            before = await eventually(lambda: completed_count(own_client))
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.recover)
            await eventually(lambda before=before: more_completed(own_client, than=before + 20))
    outputs = [await repeated(lambda task=task: task.result(30)) for task in accepted]
    assert outputs == list(range(len(outputs)))
    rows = await own_client.engine.database.fetch("select task_id from holdfast.attempt where state = 'c'")
    assert set(Counter(row["task_id"] for row in rows).values()) == {1}
    assert not (await verify(own_client.engine.database)).violations


@asynccontextmanager
async def under_load(client: Client):
    """Hand in task after task, under keys, whatever happens to the database; gives the list of those accepted."""
    add = client._actions["fleet.add"]
    accepted: list[Task] = []
    is_over = asyncio.Event()

    async def produce() -> None:
        while not is_over.is_set():
            n = len(accepted)
            accepted.append(await repeated(lambda n=n: client.enqueue(add.options(key=f"n{n}"), a=n, b=0)))

    producing = asyncio.create_task(produce())
    yield accepted
    is_over.set()
    await producing


async def completed_count(client: Client) -> int:
    count = "select count(*) from holdfast.attempt where state = 'c'"
    return await repeated(lambda: client.engine.database.fetchval(count))


async def more_completed(client: Client, *, than: int) -> bool:
    return await completed_count(client) > than


# A lease that is longer than the slowest machine takes to recover.
@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_an_outage_is_two_lines_in_the_log_of_each_process is fast"
)
@pytest.mark.parametrize("times", [TIMES | {"lease_seconds": 15.0}], ids=["patient"])
async def test_a_short_absence_costs_a_running_attempt_nothing(server, fleet, own_client, journal, gate):
    fleet()
    task = await own_client.enqueue("fleet.wait_for", path=str(gate))
    await journal.first("start")
    await asyncio.to_thread(server.crash)
    await asyncio.to_thread(server.recover)
    gate.touch()
    assert await repeated(lambda: task.result(20)) == "done"
    assert [entry.attempt for entry in journal.entries("start")] == [1]


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_an_outage_is_two_lines_in_the_log_of_each_process is fast"
)
async def test_work_stops_before_the_lease_ends_when_the_database_stays_away(
    server, fleet, own_client, journal, eventually
):
    one = fleet()
    task = await own_client.enqueue("fleet.hang_once")
    first = await journal.first("start")
    await asyncio.to_thread(server.crash)
    await eventually(lambda: "does not answer" in one.log)
    stopped = await journal.first("stop")
    await asyncio.to_thread(server.recover)
    assert await repeated(lambda: task.result(20)) == 2
    assert stopped.pid == first.pid
    reason = await own_client.engine.database.fetchval("select message from holdfast.failure")
    assert "expired" in reason and stopped.at < (await journal.first("start", attempt=2)).at


async def test_an_outage_is_two_lines_in_the_log_of_each_process(server, fleet, own_client, eventually, way):
    one = fleet(processes=1, slots=5)
    assert await (await own_client.enqueue("fleet.add", a=1, b=1)).result(20) == 2
    await asyncio.to_thread(server.crash)
    processes = PROCESSES[way]
    await eventually(lambda: one.log.count("does not answer") == processes)
    await asyncio.to_thread(server.recover)
    task = await repeated(lambda: own_client.enqueue("fleet.add", a=2, b=2))
    assert await repeated(lambda: task.result(30)) == 4
    await eventually(lambda: one.log.count("answers again") == processes)
    assert one.log.count("does not answer") == processes


PROCESSES = {"direct": 2, "http": 1}
"""The worker process, and its parent if that has the maintenance loops."""
