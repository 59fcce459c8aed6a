"""Random histories on overlapping connections, with workers that come back from the dead.

Three connections may each have a transaction open while the others go on; a lock that is held makes the later one give
up, as a timeout would. Every lease ever granted may be used again at any time, also one from a transaction that was
rolled back. At the end everything is healed and drained: all invariants hold, every task is over, and a completion that
was accepted is the one on record.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from holdfast.core.outcome import Canceled, Completed, Failed, Lost, Released
from holdfast.dispatcher import cancel as cancel_verb
from holdfast.dispatcher.claim import Claimer
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.heartbeat import heartbeat
from holdfast.dispatcher.leases import report_of
from holdfast.dispatcher.reap import reap_once
from holdfast.dispatcher.reconcile import reconcile_once
from holdfast.dispatcher.settle import settle
from holdfast.dispatcher.verify import verify
from holdfast.errors import Conflict, NotFound
from holdfast.settings import Settings
from holdfast.store.database import Session
from holdfast.testing.clock import Clock
from holdfast.testing.dispatcher import Dispatcher
from holdfast.testing.factories import a_failure, a_task

CONNECTIONS = st.integers(0, 2)
WORKERS = st.sampled_from(["first", "second", "third"])
OUTCOMES = st.sampled_from(["complete", "fail", "lose", "release", "cancel"])
ANY = st.integers(0, 1000)


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
        self.dispatcher = Dispatcher(self.engine)
        self.clock = Clock(self.engine.database)
        self.lines = [Line(await self.engine.database.connect()) for _ in range(3)]
        for line in self.lines:
            await line.session.execute("set lock_timeout = '20ms'")
        for worker in ("first", "second", "third"):
            await self.dispatcher.worker_id(worker)

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
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            line.completed = {}
            if line.open is not None:
                await line.open.rollback()
                line.open = None

    @rule(line=CONNECTIONS)
    def begin_transaction(self, line):
        line = self.lines[line]
        if line.open is None:
            line.open = line.session.connection.transaction()
            self.run(line.open.start())

    @rule(line=CONNECTIONS, commits=st.booleans())
    def end_transaction(self, line, commits):
        line = self.lines[line]
        if line.open is not None:
            self.run(line.open.commit() if commits else line.open.rollback())
            if commits:
                self.completed |= line.completed
            line.open, line.completed = None, {}

    @initialize()
    def have_work(self):
        self.enqueue(4, 2, 2)

    @rule(count=st.integers(1, 4), retries=st.integers(0, 2), losses=st.integers(0, 2))
    def enqueue(self, count, retries, losses):
        order = a_task(max_retries=retries, max_losses=losses, base_backoff_secs=1)
        self.tasks += [int(task.task_id) for task in self.run(self.dispatcher.enqueue_many(order, [{}] * count))]

    @rule(line=CONNECTIONS, worker=WORKERS, want=st.integers(1, 3))
    def claim(self, line, worker, want):
        async def act(line):
            claimer = Claimer((await self.dispatcher._claimer(worker)).identity)
            claimed = await claimer.claim(line.session, want, now=0.0)
            await self.engine.catalog.learn({one.lane_id for one in claimed}, {one.policy_id for one in claimed})
            return claimed

        self.leases += self.run(self.on(self.lines[line], act)) or []

    @precondition(lambda self: self.leases)
    @rule(line=CONNECTIONS, which=ANY, outcome=OUTCOMES)
    def settle(self, line, which, outcome):
        claimed = self.leases[which % len(self.leases)]
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

        self.run(self.on(self.lines[line], act))

    @precondition(lambda self: self.leases)
    @rule(line=CONNECTIONS, which=st.lists(ANY, min_size=1, max_size=3))
    def beat(self, line, which):
        held = {self.leases[one % len(self.leases)] for one in which}
        tokens = {claimed.task_id: claimed.lease_token for claimed in held}
        self.run(self.on(self.lines[line], lambda line: heartbeat(line.session, 1, tokens, lease_seconds=10)))

    @rule(line=CONNECTIONS)
    def reap(self, line):
        self.run(self.on(self.lines[line], lambda line: reap_once(line, self.engine.catalog)))

    @rule(line=CONNECTIONS)
    def reconcile(self, line):
        self.run(self.on(self.lines[line], reconcile_once))

    @precondition(lambda self: self.tasks)
    @rule(line=CONNECTIONS, which=ANY)
    def cancel(self, line, which):
        task_id = self.tasks[which % len(self.tasks)]
        self.run(
            self.on(
                self.lines[line],
                lambda line: cancel_verb.cancel(line, 1, [task_id], grace_seconds=5, reason="", actor=""),
            )
        )

    @precondition(lambda self: self.tasks)
    @rule(line=CONNECTIONS, which=ANY)
    def retry(self, line, which):
        async def act(line):
            with contextlib.suppress(Conflict, NotFound):
                await cancel_verb.retry(line, 1, self.tasks[which % len(self.tasks)], actor="", reason="")

        self.run(self.on(self.lines[line], act))

    @rule(seconds=st.sampled_from([1, 4, 11, 60]))
    def pass_time(self, seconds):
        self.run(self.clock.advance(seconds=seconds))

    @rule(line=CONNECTIONS, frozen=WORKERS, thief=WORKERS)
    def steal(self, line, frozen, thief):
        """What takes a task from a worker that froze: a claim, time, a reaper, another claim."""
        self.claim(line, frozen, 3)
        self.pass_time(11)
        self.reap(line)
        self.claim(line, thief, 3)

    @precondition(lambda self: self.stale())
    @rule(line=CONNECTIONS, which=ANY, outcome=OUTCOMES)
    def thaw(self, line, which, outcome):
        """A worker whose task was stolen wakes up and reports."""
        stale = self.stale()
        self.settle(line, self.leases.index(stale[which % len(stale)]), outcome)

    def stale(self):
        newest = {claimed.task_id: claimed.attempt for claimed in self.leases}
        return [claimed for claimed in self.leases if claimed.attempt < newest[claimed.task_id]]

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
            await self.clock.advance(seconds=60)
            await self.dispatcher.reap_once()
            await self.dispatcher.reconcile_once()
            for lease in await self.dispatcher.claim(100, worker="survivor"):
                await self.dispatcher.settle(lease, Completed(b"%d" % lease.attempt))
        await self.clock.reset()
        await self.check()

    async def check(self):
        database = self.engine.database
        verified = await verify(database)
        assert not verified.violations, "\n".join(map(str, verified.violations))
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
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking takes minutes on a real database; add Phase.shrink by hand to look at a failure.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
