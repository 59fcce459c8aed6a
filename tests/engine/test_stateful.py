"""Random histories on overlapping connections, with workers that come back from the dead.

Three connections may each have a transaction open while the others go on; a lock that is held makes the later one give
up, as a timeout would. Every lease ever granted may be used again at any time, also one from a transaction that was
rolled back. At the end everything is healed and drained: all invariants hold, every task is over, and a completion that
was accepted is the one on record.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.conftest import broken_in

from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Released
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.dead_letters.requeue import RequeueRequest, redrive_task
from holdfast.engine.lifecycle.dead_letters.sweep import sweep_once
from holdfast.engine.lifecycle.tasks import cancel as cancel_verb
from holdfast.engine.lifecycle.tasks.claim import Claimer
from holdfast.engine.lifecycle.tasks.heartbeat import heartbeat
from holdfast.engine.lifecycle.tasks.reap import reap_once
from holdfast.engine.lifecycle.tasks.reconcile import reconcile_once
from holdfast.engine.lifecycle.tasks.retry import retry
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import Conflict, DispatchFailed, NotFound
from holdfast.settings.settings import Settings
from holdfast.store.database import Session
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_failure, a_task

ACTS = {
    "begin_transaction": 1, "end_transaction": 2, "enqueue": 1, "claim": 3, "settle": 4, "beat": 2, "reap": 2,
    "reconcile": 1, "cancel": 1, "retry": 1, "redrive": 2, "sweep": 2, "pass_time": 1, "steal": 3, "thaw": 4,
}  # fmt: skip
IN_THE_WAY = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
OUTCOMES = ["complete", "complete", "fail", "lose", "release", "cancel"]
WORKERS = ["first", "second", "third"]


@dataclass(frozen=True)
class Choice:
    """What happens next: where, by whom, to which of the leases or tasks so far, and how it ends."""

    act: str
    line: int
    worker: str
    which: int
    outcome: str
    number: int


CHOICES = st.builds(
    Choice,
    # One rule with weights: as rules of their own, most examples would leave out what the others need.
    act=st.sampled_from([act for act, weight in ACTS.items() for _ in range(weight)]),
    line=st.integers(0, 2),
    worker=st.sampled_from(WORKERS),
    which=st.integers(0, 1000),
    outcome=st.sampled_from(OUTCOMES),
    number=st.integers(0, 3),
)


class Line:
    """One connection that looks like a database to the verbs; what it did counts once its transaction commits."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.open: Any = None
        self.completed: dict[int, int] = {}

    @asynccontextmanager
    async def transaction(self):
        async with self.session.transaction():
            yield self.session

    async def fetch(self, statement, *arguments):
        return await self.session.fetch(statement, *arguments)

    async def fetchrow(self, statement, *arguments):
        return await self.session.fetchrow(statement, *arguments)


class Histories(RuleBasedStateMachine):
    def __init__(self, databases) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.databases = databases
        self.leases: list[Any] = []
        self.tasks: list[int] = []
        self.completed: dict[int, int] = {}
        self.run(self.begin())

    def run(self, work):
        return self.runner.run(work)

    async def begin(self):
        self.url = await self.databases.create()
        self.engine = await Engine(self.url, Settings(), sessions_max=3).__aenter__()
        self.harness = EngineHarness(self.engine)
        self.clock = DatabaseClock(self.engine.database)
        self.lines = [Line(await self.engine.database.connect()) for _ in range(3)]
        for line in self.lines:
            await line.session.execute("set lock_timeout = '20ms'")
        for worker in WORKERS:
            await self.harness.worker_id(worker)

    async def on(self, line: Line, act) -> Any:
        """Act on a line, in its open transaction or one of its own. A lock it cannot get undoes the transaction."""
        try:
            if line.open is not None:
                return await act(line)
            async with line.session.transaction():
                answer = await act(line)
            self.completed |= line.completed
            line.completed = {}
            return answer
        except (*IN_THE_WAY, DispatchFailed) as error:
            assert isinstance(error if isinstance(error, IN_THE_WAY) else error.__cause__, IN_THE_WAY)
            line.completed = {}
            if line.open is not None:
                await line.open.rollback()
                line.open = None

    @initialize()
    def have_work(self):
        order = a_task(max_retries=2, max_losses=2)
        self.tasks += [int(task.task_id) for task in self.run(self.harness.enqueue_many(order, [{}] * 4))]

    @rule(choice=CHOICES)
    def step(self, choice):
        self.run(getattr(self, choice.act)(self.lines[choice.line], choice))

    async def begin_transaction(self, line, choice):
        if line.open is None:
            line.open = line.session.connection.transaction()
            await line.open.start()

    async def end_transaction(self, line, choice):
        if line.open is not None and choice.number:
            await line.open.commit()
            self.completed |= line.completed
        elif line.open is not None:
            await line.open.rollback()
        line.open, line.completed = None, {}

    async def enqueue(self, line, choice):
        order = a_task(max_retries=choice.number, max_losses=3 - choice.number)
        self.tasks.append(int((await self.harness.enqueue(order)).task_id))

    async def claim(self, line, choice):
        async def act(line):
            claimer = Claimer((await self.harness._claimer(choice.worker)).identity)
            claimed = await claimer.claim(line.session, choice.number + 1, now=0.0)
            await self.engine.catalog.learn({one.lane_id for one in claimed}, {one.policy_id for one in claimed})
            return claimed

        self.leases += await self.on(line, act) or []

    async def settle(self, line, choice):
        if self.leases:
            await self.report(line, self.leases[choice.which % len(self.leases)], choice.outcome)

    async def thaw(self, line, choice):
        """A worker whose task was stolen wakes up and reports."""
        newest = {claimed.task_id: claimed.attempt for claimed in self.leases}
        if stale := [claimed for claimed in self.leases if claimed.attempt < newest[claimed.task_id]]:
            await self.report(line, stale[choice.which % len(stale)], choice.outcome)

    async def report(self, line, claimed, outcome):
        ends = {
            "complete": Completed(b"%d" % claimed.attempt),
            "fail": Failed(a_failure()),
            "lose": Lost(a_failure()),
            "release": Released(),
            "cancel": Canceled(),
        }

        async def act(line):
            settled = await settle(line.session, self.engine.catalog, [report_of(claimed, ends[outcome])])
            if outcome == "complete" and not settled.refused:
                line.completed[claimed.task_id] = claimed.attempt

        await self.on(line, act)

    async def beat(self, line, choice):
        held = self.leases[choice.which % (len(self.leases) + 1) :][:3]
        tokens = {claimed.task_id: claimed.lease_token for claimed in held}
        await self.on(line, lambda line: heartbeat(line.session, 1, tokens, lease_seconds=10))

    async def reap(self, line, choice):
        await self.on(line, lambda line: reap_once(line, self.engine.catalog))

    async def reconcile(self, line, choice):
        await self.on(line, reconcile_once)

    async def cancel(self, line, choice):
        task_ids = [self.tasks[choice.which % len(self.tasks)]]
        who = {"grace_seconds": 5, "reason": "", "actor": "somebody"}
        await self.on(line, lambda line: cancel_verb.cancel(line, self.engine.catalog, 1, task_ids, **who))

    async def retry(self, line, choice):
        async def act(line):
            with suppress(Conflict, NotFound):
                task_id = self.tasks[choice.which % len(self.tasks)]
                await retry(line, self.engine.catalog, 1, task_id, actor="ann", reason="")

        await self.on(line, act)

    async def redrive(self, line, choice):
        async def act(line):
            task_id = self.tasks[choice.which % len(self.tasks)]
            async with line.transaction() as session:
                await redrive_task(session, self.engine.catalog, 1, task_id, RequeueRequest("ann", "fixed"))

        await self.on(line, act)

    async def sweep(self, line, choice):
        await self.on(line, lambda line: sweep_once(line, self.engine.catalog))

    async def pass_time(self, line, choice):
        await self.clock.advance(seconds=(1, 4, 11, 60)[choice.number])

    async def steal(self, line, choice):
        """What takes a task from a worker that froze: a claim, time, a reaper, another claim."""
        await self.claim(line, choice)
        await self.clock.advance(seconds=11)
        await self.reap(line, choice)
        await self.claim(line, replace(choice, worker=WORKERS[choice.which % 3]))

    def teardown(self):
        try:
            self.run(self.heal())
        finally:
            self.run(self.end())
            self.runner.close()

    async def heal(self):
        for line in self.lines:
            if line.open is not None:
                await line.open.rollback()
        for _ in range(20):
            if not await self.engine.database.fetchval("select count(*) from holdfast.live"):
                break
            await self.clock.advance(seconds=60)
            await self.harness.reap_once()
            await self.harness.reconcile_once()
            for lease in await self.harness.claim(100, worker="survivor"):
                await self.harness.settle(lease, Completed(b"%d" % lease.attempt))
        await self.clock.reset()
        await self.check()

    async def check(self):
        database = self.engine.database
        broken = await broken_in(self.url)
        assert not broken, "\n".join(broken)
        assert await database.fetchval("select count(*) from holdfast.live") == 0
        rows = await database.fetch("select task_id, attempt, output from holdfast.attempt where state = 'c'")
        recorded = {row["task_id"]: row["attempt"] for row in rows}
        assert self.completed.items() <= recorded.items()
        assert all(row["output"] == b"%d" % row["attempt"] for row in rows)

    async def end(self):
        for line in self.lines:
            await line.session.close()
        await self.engine.__aexit__(None, None, None)
        await self.databases.drop(self.url)


def test_every_random_history_keeps_every_promise(holdfast_databases):
    run_state_machine_as_test(
        lambda: Histories(holdfast_databases),
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking takes minutes on a real database; add Phase.shrink by hand to look at a failure.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
