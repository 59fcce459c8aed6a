"""Work that another transaction held at the moment of the look is found when it lets go, without a poll."""

from __future__ import annotations

import asyncio

import pytest

import holdfast as hf
from holdfast.engine.maintenance import loops
from holdfast.store.statements import sql
from holdfast.worker.transport.database import DatabaseTransport

POLL_SECONDS = 60.0
SOON_SECONDS = POLL_SECONDS / 6


@pytest.fixture
def times(times):
    return {**times, "poll_seconds": POLL_SECONDS}


@pytest.fixture
def looking(line, engine, monkeypatch):
    """A line that polls rarely, and an event: a look for work was answered. Nothing is announced a second time."""
    monkeypatch.setattr(loops, "REPUBLISH_SECONDS", POLL_SECONDS)
    made = line()
    made = DatabaseTransport(engine) if made is engine else made
    made.poll_seconds = POLL_SECONDS
    looked, exchange = asyncio.Event(), made.exchange

    async def exchange_and_tell(reports, want, *given, **options):
        turn = await exchange(reports, want, *given, **options)
        if want:
            looked.set()
        return turn

    made.exchange = exchange_and_tell
    return made, looked


async def test_a_caller_who_begins_to_wait_does_not_delay_the_task(running_worker, client_of, engine, looking):
    """`result()` marks the task, and holds its row until that is committed: the claim passes over it."""
    began = asyncio.Event()
    app = hf.App("local")

    @app.action
    async def act() -> int:
        began.set()
        return 1

    slow, looked = looking
    async with client_of(app) as client:
        task = await client.enqueue("local.act")
        async with engine.database.transaction() as caller:
            assert await caller.fetch(sql("await_tasks"), [int(task.task_id)], 1)
            working = running_worker(app=app, line=slow, slots=1)
            await working.__aenter__()
            try:
                await asyncio.wait_for(looked.wait(), 20)
                assert not began.is_set()
            except BaseException:
                await working.__aexit__(None, None, None)
                raise
        try:
            await asyncio.wait_for(began.wait(), SOON_SECONDS)
            assert await task.result(20) == 1
        finally:
            await working.__aexit__(None, None, None)
