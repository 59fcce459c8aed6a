"""Flows that a process meets: with a run, it has all that the run's nodes may start, whatever comes in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_parent, a_sum

from holdfast.engine.engine import Engine
from holdfast.store.database import Session


@pytest.fixture
async def parent(harness):
    """The snapshot of a flow that runs another."""
    await harness.runs.snapshot(a_sum(1))
    return await harness.runs.snapshot(a_parent())


@pytest.fixture
async def elsewhere(engine):
    """Another process, which has met nothing."""
    async with Engine(engine.database.url, engine.settings) as opened:
        yield opened


class Halting:
    """A session whose second read waits until it is let go, or fails."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reads = 0
        self.is_halted, self.goes_on = asyncio.Event(), asyncio.Event()
        self.trouble: Exception | None = None

    async def fetch(self, statement, *arguments):
        self._reads += 1
        if self._reads == 2:
            self.is_halted.set()
            await self.goes_on.wait()
            if self.trouble is not None:
                raise self.trouble
        return await self._session.fetch(statement, *arguments)


def has_all_of(engine: Engine, parent) -> bool:
    flows = engine.catalog.flows
    children = [one for one in flows.snapshot(parent.snapshot_id).child_ids if one]
    return bool(children) and all(flows.snapshot(one) for one in children)


async def test_who_asks_while_another_reads_has_all_of_it(elsewhere, parent):
    flows = elsewhere.catalog.flows
    async with elsewhere.database.session() as session, elsewhere.database.session() as beside:
        halting = Halting(session)
        slow = asyncio.create_task(flows.learn([parent.snapshot_id], halting))
        await halting.is_halted.wait()
        await flows.learn([parent.snapshot_id], beside)
        assert has_all_of(elsewhere, parent)
        halting.goes_on.set()
        await slow


async def test_who_was_cut_off_in_between_reads_the_rest_the_next_time(elsewhere, parent):
    flows = elsewhere.catalog.flows
    async with elsewhere.database.session() as session:
        halting = Halting(session)
        halting.trouble = ConnectionResetError("cut")
        halting.goes_on.set()
        with pytest.raises(ConnectionResetError):
            await flows.learn([parent.snapshot_id], halting)
        await flows.learn([parent.snapshot_id], session)
    assert has_all_of(elsewhere, parent)
