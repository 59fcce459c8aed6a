"""A real worker whose connection breaks at every statement it sends, one after the other.

Its leases outlive each cut, so nothing needs to run twice: an attempt whose claim was not answered is found again, one
that ended is not started again, and each report is accepted once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from tests.crash.strikes import CUTS

from holdfast.authoring.app import App
from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings
from holdfast.testing.crash import StatementFault
from holdfast.worker.runtime.worker import Worker

pytestmark = pytest.mark.crash

TASKS = 8


@pytest.fixture
def holdfast_settings(holdfast_url):
    settings = Settings(url=holdfast_url)
    return replace(settings, worker=replace(settings.worker, poll_seconds=0.2, slots=3))


@pytest.mark.parametrize("mode", CUTS)
async def test_a_cut_connection_costs_no_second_execution(mode, engine, holdfast_settings, record_property):
    executions: Counter[int] = Counter()
    app = App("shop", settings=holdfast_settings)

    @app.action(retry={"base_backoff_secs": 0.0})
    async def charge(number: int) -> int:
        executions[number] += 1
        if number % 4 == 3 and executions[number] == 1:
            raise ConnectionError("connection reset")
        return number

    async with app.client() as client, Engine(engine.database.url, holdfast_settings) as cut:
        fault = cut.database.tap = StatementFault(mode, 0)
        worker = Worker(cut, app.actions)
        running = asyncio.create_task(worker.run())
        await worker.ready.wait()
        for k in count(1):
            executions.clear()
            fault.arm(k)
            tasks = await client.enqueue_many(charge, [{"number": number} for number in range(TASKS)])
            assert [await task.result(timeout=20) for task in tasks] == list(range(TASKS)), fault.statement
            assert executions == {number: 1 + (number % 4 == 3) for number in range(TASKS)}, fault.statement
            if not fault.fired:
                break
        worker.stop()
        await running
    record_property("strikes", k - 1)
    assert k > 10
