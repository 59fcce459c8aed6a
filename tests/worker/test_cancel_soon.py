"""A cancel reaches a running attempt at once: it does not wait for the next beat, over either line."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.core.flows import a_node

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition

BEAT_SECONDS = 30.0
SOON_SECONDS = BEAT_SECONDS / 6


@pytest.fixture
def times(times):
    """A worker that beats rarely."""
    return {**times, "lease_seconds": 3.2 * BEAT_SECONDS, "heartbeat_seconds": BEAT_SECONDS, "cancel_grace_seconds": 60}


class Slow:
    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()
        self.app = hf.App("local")
        self.app.action()(self.slow)

    async def slow(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()


@pytest.mark.parametrize("slots", [1, 4], ids=["busy", "free"])
async def test_a_cancel_does_not_wait_for_the_beat(running_worker, client_of, slots):
    work = Slow()
    async with client_of(work.app) as client, running_worker(app=work.app, slots=slots):
        task = await client.enqueue("local.slow")
        await work.began.wait()
        asked_at = time.monotonic()
        assert await task.cancel() == "canceling"
        await asyncio.wait_for(work.stopped.wait(), BEAT_SECONDS)
        assert time.monotonic() - asked_at < SOON_SECONDS


async def test_the_cancel_of_a_run_does_not_wait_for_the_beat(running_worker, harness):
    work = Slow()
    flow = FlowDefinition(name="local.one", nodes=(a_node("n", "local.slow"),), edges=()).validated()
    run = await harness.runs.start(flow)
    async with running_worker(app=work.app, slots=1):
        await work.began.wait()
        asked_at = time.monotonic()
        await harness.runs.cancel(run)
        await asyncio.wait_for(work.stopped.wait(), BEAT_SECONDS)
        assert time.monotonic() - asked_at < SOON_SECONDS
