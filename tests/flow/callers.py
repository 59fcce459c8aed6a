"""Those who report on nodes: processes of their own with connections of their own, which break, die and come back.

A `Stage` has them, the clock, and a count of what befell them, so that a test can show that it did.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from tests.crash.repair import free_of_victims

from holdfast.core.tasks.outcome import Lost
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.publish import publish_and_propagate
from holdfast.errors import LeaseLost
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.store.database import TRANSIENT
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.crash import FaultMode, StatementFault
from holdfast.testing.factories import a_failure

CUTS = (FaultMode.CUT_BEFORE, FaultMode.CUT_AFTER)
STATEMENTS_MAX = 8
"""About as many as a report of a node takes with what follows from it."""
LEASE_SECONDS = 60.0
"""No lease runs out but by the clock in a test's hands, however slow the machine is."""
LOSING = ("dead", "slow", "lost")
FATES = ("cut", "unheard", *LOSING)
"""What may become of a report: its connection breaks at some statement, or the answer to its commit is lost, and it is
repeated; its worker dies in it; its lease runs out first, so that it comes late; its worker says that the attempt is
lost."""


class Unheard(StatementFault):
    """The commit is done, and nobody hears of it."""

    def __init__(self) -> None:
        super().__init__(FaultMode.CUT_AFTER, 0)

    def before(self, statement: str) -> None:
        self._left = 0 if statement == "commit" and not self.fired else -1


class Caller:
    """A worker's process, as the database sees it."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        self._stage, self._engine = stage, engine

    async def report(self, lease: Any, outcome: Any, fault: StatementFault | None = None) -> None:
        """Settle and follow up, as a worker does; `LeaseLost` if it is refused."""
        await self._engine.catalog.learn([lease.claimed.lane_id], [lease.claimed.policy_id])
        database = self._engine.database
        database.tap = Watch(self._stage, fault)
        try:
            async with database.transaction() as session:
                settled = await settle(session, self._engine.catalog, [report_of(lease.claimed, outcome)])
            await publish_and_propagate(self._engine, settled.notifications)
        finally:
            database.tap.close()
            database.tap = None
        if settled.refused:
            raise LeaseLost("It was not accepted.", winner=settled.refused[0].winner)


class Watch:
    """A tap that sees whether two are in their transactions at once, and strikes where it is told to."""

    def __init__(self, stage: Stage, fault: StatementFault | None) -> None:
        self._stage, self._fault = stage, fault

    def before(self, statement: str) -> None:
        self._stage.busy.add(self)
        self._stage.tally["at once"] += len(self._stage.busy) > 1
        if self._fault is not None:
            self._fault.before(statement)

    def after(self, statement: str) -> None:
        if self._fault is not None:
            self._fault.after(statement)
        if statement == "commit":
            self._stage.busy.discard(self)

    def close(self) -> None:
        self._stage.busy.discard(self)
        if self._fault is not None and self._fault.fired:
            self._stage.tally["answer lost" if self._fault.statement == "commit" else "rolled back"] += 1


class Stage:
    """Where runs are played: one engine, two callers beside it, two that come back from the dead, and the time."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.busy: set[Watch] = set()
        self.callers: list[Caller] = []
        self.zombies: list[Caller] = []
        self._engines: list[Engine] = []

    async def open(self, engine: Engine) -> Stage:
        """Once, by whoever comes first."""
        if not self._engines:
            self.engine, self.clock = engine, DatabaseClock(engine.database)
            engine.settings = Settings(worker=WorkerSettings(lease_seconds=LEASE_SECONDS))
            for _ in range(4):
                self._engines.append(await Engine(engine.database.url, Settings(), sessions_max=3).__aenter__())
            self.callers = [Caller(self, one) for one in self._engines[:2]]
            self.zombies = [Caller(self, one) for one in self._engines[2:]]
        return self

    async def close(self) -> None:
        for one in self._engines:
            await one.__aexit__(None, None, None)
        await self.clock.reset()


class Fates:
    """What becomes of the reports on one run. A task loses one attempt at most, so that its budget lasts."""

    def __init__(self, stage: Stage, harness: Any, rate: float, random: Any) -> None:
        self.stage, self.harness, self.rate, self.random = stage, harness, rate, random
        self.of: dict[tuple[str, int], str] = {}
        self._has_dead = self._has_struck = False
        self._stale: dict[str, tuple[Any, Any]] = {}

    def draw(self, lease: Any) -> str:
        has_lost = any(task_id == lease.task_id and fate in LOSING for (task_id, _), fate in self.of.items())
        choices = [fate for fate in FATES if not (has_lost and fate in LOSING)]
        fate = self.random.choice(choices) if self.random.random() < self.rate else "well"
        self.of[lease.task_id, lease.attempt] = fate
        self.stage.tally[fate] += 1
        return fate

    async def meet(self, reports: list[tuple[Any, Any]], held: list[Any]) -> None:
        """Report all of these at once, each by a caller of its own, while others pass over the runs and those come back
        whose tasks these were before."""
        drawn = [(lease, outcome, self.draw(lease)) for lease, outcome in reports]
        prompt = [one for one in drawn if one[2] != "slow"]
        back = [self._stale.pop(lease.task_id) for lease, _ in reports if lease.task_id in self._stale]
        at_once = [self._report(*each, caller) for each, caller in zip(prompt, self.stage.callers, strict=False)]
        at_once += [self._come_back(*each, caller) for each, caller in zip(back, self.stage.zombies, strict=False)]
        if self.random.random() < 0.3:
            at_once.append(self.harness.runs.repair_once())
        self.random.shuffle(at_once)
        await asyncio.gather(*at_once)
        if slow := [(lease, outcome) for lease, outcome, fate in drawn if fate == "slow"]:
            await self._run_out(slow, held)

    async def _report(self, lease: Any, outcome: Any, fate: str, caller: Caller) -> None:
        if fate in ("well", "lost"):
            await caller.report(lease, outcome if fate == "well" else Lost(a_failure()))
            return
        fault = Unheard() if fate == "unheard" else self._anywhere()
        with suppress(*TRANSIENT):
            await caller.report(lease, outcome, fault)
        self._has_struck |= fault.fired
        if fate != "dead":
            # Settled before or not, the identical report is answered as before.
            await caller.report(lease, outcome)
        self._has_dead |= fate == "dead"

    def _anywhere(self) -> StatementFault:
        return StatementFault(self.random.choice(CUTS), self.random.randint(1, STATEMENTS_MAX))

    async def _run_out(self, slow: list[tuple[Any, Any]], held: list[Any]) -> None:
        """Everybody beats but these, so that their leases are over by the clock, and the reaper finds them."""
        await free_of_victims(self.stage.engine)
        for _ in range(2):
            await self.stage.clock.advance(seconds=LEASE_SECONDS * 0.6)
            assert not held or not (await self.harness.heartbeat(*held)).lost
        assert await self.harness.reap_once() >= len(slow)
        self._stale |= {lease.task_id: (lease, outcome) for lease, outcome in slow}

    async def _come_back(self, lease: Any, outcome: Any, caller: Caller) -> None:
        """Another has the task by now, who may be about to report on it: whose lease ran out is refused."""
        with pytest.raises(LeaseLost):
            await caller.report(lease, outcome)
        self.stage.tally["refused"] += 1

    async def made_good(self) -> bool:
        """Nobody holds anything: let the leases of the dead run out, and passes find what was cut off."""
        if not self._has_struck and not self._has_dead:
            return False
        await free_of_victims(self.stage.engine)
        if self._has_dead:
            await self.stage.clock.advance(seconds=LEASE_SECONDS + 1)
            await self.harness.reap_once()
        await self.harness.runs.repair_once()
        self._has_struck = self._has_dead = False
        return True

    async def ran(self, leases: dict[tuple[str, int], str]) -> Counter[str]:
        """How many tasks of each node ran to an end that counts, by what is on record about each attempt."""
        rows = await self.stage.engine.database.fetch(
            "select task_id, attempt, state from holdfast.attempts where task_id = any($1)",
            sorted({task_id for task_id, _ in leases}),
        )
        states = {(row["task_id"], row["attempt"]): row["state"] for row in rows}
        assert states.keys() <= self.of.keys(), "an attempt that nobody was handed"
        for attempt in leases:
            fate, state = self.of[attempt], states[attempt]
            assert state in ("completed", "failed", "lost")
            assert fate == "dead" or (state == "lost") == (fate in LOSING), (attempt, fate, state)
        return Counter(name for attempt, name in leases.items() if states[attempt] != "lost")
