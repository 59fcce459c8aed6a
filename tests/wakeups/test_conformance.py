"""One suite for NOTIFY, SQS and Redis: whatever happens to wake-ups, nothing is lost and nothing runs twice.

The executions are counted by the attempts themselves, outside the database; the invariants are checked after each test.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from tests.by_sql import declare
from tests.waiting import eventually

from holdfast.core.values.duration import seconds_of
from holdfast.engine.lifecycle.tasks.claim import Claimer
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.queries.checkup import check_up
from holdfast.engine.wakeups import relay
from holdfast.engine.wakeups.outbox import read_wake
from holdfast.wakeups.consumer import Consumer

pytestmark = pytest.mark.xdist_group("carriers")

FAR_SECONDS = 300.0
"""A poll that no test waits for."""
ROUNDS, ROUND = 3, "2m"
"""For how long a carrier is away; in each round everybody looks for work many times."""


@pytest.mark.representative(one_in=4)
@pytest.mark.parametrize("carrier", ["postgres", "sqs", "redis", "own"], indirect=True)
async def test_a_wake_up_starts_work_long_before_the_poll(carrier, fleet, executions):
    async with fleet(poll_seconds=FAR_SECONDS) as started:
        await started.work_off(steady=1, flaky=1)
    assert sorted(attempt for _, attempt in executions) == [1, 1, 2]


@pytest.mark.representative(one_in=2)
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


class Counted:
    """How often those did something who go on while the carrier is away; they do it often here."""

    def __init__(self, monkeypatch):
        self.of = Counter()
        for seconds in (
            "maintenance.loops.REPUBLISH_SECONDS",
            "wakeups.relay.REPLENISH_SECONDS",
            "wakeups.relay.AWAY_SECONDS_MAX",
        ):
            monkeypatch.setattr(f"holdfast.engine.{seconds}", 0.1)
        for what, where in (("polls", Claimer), ("rounds", Loops), ("tries", relay), ("hints", Consumer)):
            self._count(monkeypatch, what, where)

    def _count(self, monkeypatch, what, where):
        name = {"polls": "claim", "rounds": "republish", "tries": "tell_away", "hints": "take"}[what]
        does = getattr(where, name)

        async def counted(*given, **named):
            self.of[what] += 1
            return await does(*given, **named)

        monkeypatch.setattr(where, name, counted)

    async def until_more(self, **numbers):
        """Wait until each happened that many times more."""
        enough = {what: self.of[what] + number for what, number in numbers.items()}
        await eventually(lambda: all(self.of[what] >= number for what, number in enough.items()))


@pytest.mark.representative(one_in=3)
async def test_a_carrier_that_is_away_for_minutes_costs_only_speed(carrier, fleet, executions, clock, monkeypatch):
    counted = Counted(monkeypatch)
    async with fleet() as started:
        database, client = started.engine.database, started.client
        await started.work_off(steady=3, flaky=0)
        await carrier.stop(database, monkeypatch)
        # Nobody serves this one, so that there is something left to explain.
        await declare(started.engine, "shop.unserved")
        orphan = await database.fetchval("select holdfast.enqueue('shop.unserved')")
        for _ in range(ROUNDS):
            await started.work_off(steady=5, flaky=1)
            await counted.until_more(polls=10, rounds=3, **({"tries": 2} if carrier.is_external else {}))
            await clock.advance(ROUND)
        if carrier.is_external:
            await says_it_is_away(client, database, carrier, orphan)
        await carrier.start(monkeypatch)
        if carrier.is_external:
            await counted.until_more(hints=1)

            async def is_back():
                return (await read_wake(database)).away_seconds is None

            await eventually(is_back)
        await started.work_off(steady=3, flaky=0)
        await client.cancel(orphan)
    assert set(executions.values()) == {1}
    assert len(executions) == 3 + ROUNDS * (5 + 2) + 3


async def says_it_is_away(client, database, carrier, orphan):
    """Whoever asks is told for how long, and hints of what is over do not pile up for its return."""
    why = await client.why(orphan)
    assert any(f"wake-ups over {carrier.name} have been unavailable" in line for line in why.evidence)
    findings = await check_up(database, now=datetime.now(UTC), carrier=carrier.name)
    (found,) = [one for one in findings if one.name == "wake-ups"]
    assert found.level == "warning" and f"{carrier.name} has been away" in found.detail
    assert (await read_wake(database)).away_seconds >= (ROUNDS - 1) * seconds_of(ROUND)

    async def is_the_orphans():
        return (await read_wake(database)).outstanding == 1

    await eventually(is_the_orphans)
