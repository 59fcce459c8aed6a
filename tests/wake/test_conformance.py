"""One suite for NOTIFY, SQS and Redis: whatever happens to wake-ups, nothing is lost and nothing runs twice.

The executions are counted by the attempts themselves, outside the database; the invariants are checked after each test.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.wake.conftest import eventually

from holdfast.dispatcher.checkup import check_up
from holdfast.dispatcher.hints import read_wake

pytestmark = pytest.mark.xdist_group("carriers")

FAR_SECONDS = 300.0
"""A poll that no test waits for."""


@pytest.mark.parametrize("carrier", ["postgres", "sqs", "redis", "own"], indirect=True)
async def test_a_wake_up_starts_work_long_before_the_poll(carrier, fleet, executions):
    async with fleet(poll_seconds=FAR_SECONDS) as started:
        await started.work_off(steady=1, flaky=1)
    assert sorted(attempt for _, attempt in executions) == [1, 1, 2]


@pytest.mark.takes_turns(2)
@pytest.mark.parametrize("mischief", ["drop", "repeat", "reorder", "delay", "corrupt"])
async def test_wake_ups_change_no_outcome_whatever_becomes_of_them(mischief, carrier, fleet, executions, monkeypatch):
    carrier.spoil(monkeypatch, mischief)
    async with fleet() as started:
        task_ids = await started.work_off(steady=25, flaky=5)
        # A late, forged or repeated hint about work that is over must not bring it back.
        assert await started.engine.database.fetchval("select count(*) from holdfast.live") == 0
    assert carrier.mischief.count > 0
    assert set(executions.values()) == {1}
    assert {task_id for task_id, _ in executions} == set(task_ids)
    assert len(executions) == 25 + 2 * 5


async def test_a_carrier_that_is_away_costs_only_speed(carrier, fleet, executions, monkeypatch):
    async with fleet() as started:
        database, client = started.engine.database, started.client
        await started.work_off(steady=3, flaky=0)
        await carrier.stop(database, monkeypatch)
        # Nobody serves this one, so that there is something left to explain.
        orphan = await database.fetchval("select holdfast.enqueue('shop.unserved')")
        await started.work_off(steady=10, flaky=2)
        if carrier.is_external:

            async def is_away():
                return (await read_wake(database)).away_seconds is not None

            await eventually(is_away)
            why = await client.why(orphan)
            assert any(f"wake-ups over {carrier.name} have been away" in line for line in why.evidence)
            findings = await check_up(database, now=datetime.now(UTC), carrier=carrier.name)
            (found,) = [one for one in findings if one.name == "wake-ups"]
            assert found.level == "warning" and f"{carrier.name} has been away" in found.detail

            await carrier.start(monkeypatch)

            async def is_back():
                return not await is_away()

            await eventually(is_back)
        else:
            await carrier.start(monkeypatch)
        await started.work_off(steady=3, flaky=0)
        await client.cancel(orphan)
    assert set(executions.values()) == {1}
    assert len(executions) == 3 + 10 + 2 * 2 + 3
