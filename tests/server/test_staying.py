"""Requests that wait for an end: counted, let go with their caller and with their server, and never for longer."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import pytest
from tests.core.flows import a_flow
from tests.server.conftest import Caller

from holdfast.engine.queries.events import event_tail, position, run_events_after
from holdfast.server.app import serving
from holdfast.settings.settings import HttpSettings, Settings
from holdfast.testing.factories import a_completed_task

WAITING = [
    ("/api/v1/tasks/{}/ending?wait_seconds=20", {"state": "waiting"}),
    ("/api/v1/runs/{}/ending?wait_seconds=20", {"state": "waiting"}),
    ("/api/v1/runs/{}/events?wait_seconds=20&after=7:1", {"events": [], "next": "7:1", "is_end": False}),
]

SETTLED = "select not exists (select from holdfast.event where xid >= pg_snapshot_xmin(pg_current_snapshot()))"
"""Whether all that happened can be read: transactions of other tests hold that up too."""


@pytest.fixture
def holdfast_settings():
    return Settings(env="local", port=0, http=HttpSettings(caller_streams_max=1))


class Endless:
    """What is waited for never comes. Says when somebody began to wait, and when they were let go."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self, *_args, **_options):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.fixture
def endless(monkeypatch):
    """Make everything that is waited for endless; answers the new wait."""

    def make():
        made = Endless()
        monkeypatch.setattr("holdfast.client.client.Client.ending", made)
        monkeypatch.setattr("holdfast.operations.run_follow.run_events_after", made)
        return made

    return make


async def test_who_hangs_up_is_waited_for_no_longer(call, endless, subtests):
    for path in [path for path, _ in WAITING]:
        with subtests.test(path=path):
            wait = endless()
            connection = call.open()
            await asyncio.to_thread(connection.request, "GET", path.format(1), headers=dict(call.headers))
            await asyncio.wait_for(wait.began.wait(), 10)
            refused = await call.get(path.format(1))
            assert (refused.status, refused.json["code"]) == (429, "too_many_streams")
            connection.close()
            await asyncio.wait_for(wait.ended.wait(), 10)


async def test_who_waits_is_answered_when_the_server_stops(engine, endless, subtests):
    for path, told in WAITING:
        with subtests.test(path=path, told=told):
            wait = endless()
            async with contextlib.AsyncExitStack() as stack:
                call = Caller(await stack.enter_async_context(serving(engine)))
                answer = asyncio.create_task(call.get(path.format(1)))
                await asyncio.wait_for(wait.began.wait(), 10)
                await stack.aclose()
            found = await answer
            assert found.status == 200, found.body
            assert {name: found.json[name] for name in told} == told


async def test_a_long_history_without_a_word_of_the_run_is_read_for_no_longer_than_anybody_waits(
    call, harness, engine, eventually, monkeypatch
):
    monkeypatch.setattr("holdfast.operations.run_follow.WAIT_SECONDS_MAX", 0.0)
    monkeypatch.setattr("holdfast.operations.run_follow.run_events_after", partial(run_events_after, limit=1))
    run_id = await harness.runs.start(a_flow("a>b"))
    for _ in range(5):
        await a_completed_task(harness)
    await eventually(lambda: engine.database.fetchval(SETTLED))
    last = await event_tail(engine.database)
    following, silent = "0:0", 0
    while position(following) < position(last):
        page = (await call.get(f"/api/v1/runs/{run_id}/events?after={following}")).json
        following = page["next"]
        silent += not page["events"]
    assert silent > 3, "an answer looks at no more than it has the time for, and says how far it got"
