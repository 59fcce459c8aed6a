"""A server dies with transactions in memory that it never wrote down: their numbers come again.

Whoever read events before the crash resumes after it. A cursor that had passed such a number would pass over what the
next transaction of that number tells.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_flow
from tests.own_server import OwnServer

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.engine import Engine
from holdfast.engine.queries.events import START, event_tail, events_after, run_events_after
from holdfast.settings.settings import Settings
from holdfast.testing import factories as a
from holdfast.testing.databases import remove_home, throw_away_home
from holdfast.testing.engine_harness import EngineHarness

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("own_server")]

UNWRITTEN = 50
"""More than the transactions that follow the crash before something is told."""
_FORGOTTEN = "select set_config('synchronous_commit', 'off', true), pg_current_xact_id()"
_AHEAD = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


@pytest.fixture
def server():
    home = throw_away_home()
    made = OwnServer(home, wal_writer_delay="10s")
    yield made
    made.close()
    remove_home(home)


async def _forget_some(engine) -> int:
    """Use up numbers of transactions, none of which is on disk; answers which one is next."""
    async with engine.database.session() as session:
        for _ in range(UNWRITTEN):
            await session.fetch(_FORGOTTEN)
        return await session.fetchval(_AHEAD)


async def _crash(server, engine, ahead: int) -> None:
    await asyncio.to_thread(server.crash)
    await asyncio.to_thread(server.recover)
    # Without this the test shows nothing: the numbers were written down after all.
    assert await engine.database.fetchval(_AHEAD) < ahead


@pytest.fixture
async def engine(server):
    settings = Settings(url=server.url)
    async with Engine(server.url, settings, migrates=True) as opened:
        yield opened


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("where", ["read to the end", "tail"])
async def test_a_reader_misses_nothing_that_is_told_after_the_crash(server, engine, where):
    harness = EngineHarness(engine)
    await a.a_completed_task(harness)
    ahead = await _forget_some(engine)
    page = await events_after(engine.database, 1, START)
    assert page.is_all and len(page.events) == 2
    cursor = page.cursor if where == "read to the end" else await event_tail(engine.database)
    await _crash(server, engine, ahead)
    await a.a_completed_task(harness)
    told = (await events_after(engine.database, 1, cursor)).events
    assert [event.kind for event in told] == ["task.started", "task.completed"]


async def test_who_follows_a_run_to_its_end_comes_to_it_after_the_crash(server, engine):
    harness = EngineHarness(engine)
    run_id = int(await harness.runs.start(a_flow("a>b")))
    while leases := await harness.claim(1):
        await harness.settle(leases[0], Completed(b"{}"))
    ahead = await _forget_some(engine)
    tail = (await run_events_after(engine.database, 1, run_id)).tail
    await _crash(server, engine, ahead)
    page = await run_events_after(engine.database, 1, run_id, ended_by=tail)
    assert page.is_end and [event.kind for event in page.events][-1] == "execution.completed"
