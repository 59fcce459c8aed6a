"""Workers settle while operators re-drive, cancel and run campaigns, all at once: nobody waits for another in a circle.

A few seconds in the suite; `make soak` goes on for SOAK_SECONDS (LOCK_STRESS_SECONDS says so alone).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import replace

import asyncpg
import pytest
from tests.core.flows import a_diamond, a_flow, a_map

from holdfast.core.tasks.outcome import Completed, Failed, Lost
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.campaigns.advance import campaigns_once
from holdfast.engine.campaigns.commands import start_campaign
from holdfast.engine.engine import Engine
from holdfast.engine.leases import lock_timeouts_for, report_of
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.sweep import sweep_once
from holdfast.engine.lifecycle.runs.commands import cancel_run, finish_cancels_once, retry_run
from holdfast.engine.lifecycle.tasks.cancel import cancel
from holdfast.engine.lifecycle.tasks.claim import Claimer
from holdfast.engine.lifecycle.tasks.exchange import exchange
from holdfast.engine.lifecycle.tasks.heartbeat import heartbeat
from holdfast.engine.lifecycle.tasks.reap import reap_once
from holdfast.engine.publish import publish_and_propagate
from holdfast.errors import HoldfastError
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.store.database import TRANSIENT
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_failure, a_task

SECONDS = float(os.environ.get("LOCK_STRESS_SECONDS", "4"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.randrange(1 << 30)
WORKERS = 3
OPEN_RUNS = 30
LEASE_SECONDS = 3.0
WHO = {"actor": "ann", "reason": "stress"}
FAULTS = ("the bank is closed", "no such order", "the label is torn")
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"

pytestmark = pytest.mark.timeout(SECONDS + 120)


@pytest.fixture
def holdfast_settings():
    return Settings(worker=WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=LEASE_SECONDS / 4))


class Crowd:
    """Everybody at once on one database."""

    def __init__(self, harness) -> None:
        self.harness = harness
        self.engine = harness.engine
        self.until = time.monotonic() + SECONDS
        self.done: Counter[str] = Counter()
        self.deadlocks: list[str] = []
        self.runs: list[int] = []
        self.chance = random.Random(SEED)

    async def everybody(self) -> None:
        harness = self.harness
        harness.runs.policy = RetryPolicy(max_retries=0, max_losses=0)
        self.flows = [a_diamond(), replace(a_flow("a>b b>c c>d"), name="shop.chain"), a_map(concurrency=2)]
        harness.know(a_task().action)
        actors = [self.start, self.redrive, self.retry, self.group, self.leave, self.cancel, self.cancel_run]
        actors += [self.campaign, self.sweep, self.reap]
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self.work(f"worker-{number}"))
            for actor in actors:
                group.create_task(self.repeat(actor))

    async def repeat(self, actor) -> None:
        while time.monotonic() < self.until:
            await self.attempt(actor.__name__, actor())
            await asyncio.sleep(self.chance.random() * 0.02)

    async def attempt(self, name, work) -> bool:
        try:
            await work
        except asyncpg.DeadlockDetectedError as error:
            self.deadlocks.append(f"{name}: {error.detail}")
        except (HoldfastError, *TRANSIENT) as error:
            self.done[f"{name}: {type(error).__name__}"] += 1
        else:
            self.done[name] += 1
            return True
        return False

    async def work(self, name) -> None:
        """A worker: claims, beats, and reports with the next exchange until it is accepted."""
        engine = self.engine
        claimer: Claimer = await self.harness._claimer(name)
        session = await engine.database.connect(lock_timeouts_for(LEASE_SECONDS))
        reports = []
        while time.monotonic() < self.until:

            async def exchange_once():
                nonlocal reports
                done = await exchange(session, engine.catalog, claimer, reports, 12, now=time.monotonic())
                reports = [report_of(one, self.outcome()) for one in done.claimed]
                await publish_and_propagate(engine, done.settled.notifications)

            await self.attempt("exchange", exchange_once())
            tokens = {report.task_id: report.lease_token for report in reports}
            worker_id = claimer.identity.worker_id
            await self.attempt("beat", heartbeat(session, worker_id, tokens, lease_seconds=LEASE_SECONDS))
            if self.chance.random() < 0.02:
                reports = []  # a worker that died: its leases run out
            await asyncio.sleep(self.chance.random() * 0.005)
        await session.close()

    def outcome(self):
        die = self.chance.random()
        if die < 0.3:
            return Failed(a_failure(f"validation: {self.chance.choice(FAULTS)}"))
        return Lost(a_failure("killed")) if die < 0.35 else Completed(b'{"all": [1, 2, 3]}')

    async def start(self) -> None:
        open_runs = await self.engine.database.fetchval("select count(*) from holdfast.run where state = 'o'")
        if open_runs < OPEN_RUNS:
            for flow in self.flows:
                self.runs.append(int(await self.harness.runs.start(flow)))
            await self.harness.enqueue_many(a_task(max_retries=0), [{}] * 5)
        del self.runs[:-60]

    async def one(self, query):
        """Some row of the newest."""
        rows = await self.engine.database.fetch(query)
        return self.chance.choice(rows) if rows else None

    async def letter(self):
        query = "select task_id, fingerprint from holdfast.dead_letter where state = 'open' order by 1 desc limit 50"
        return await self.one(query)

    async def redrive(self) -> None:
        if row := await self.letter():
            await dead_letter_commands.redrive(self.engine, 1, row["task_id"], **WHO)

    async def retry(self) -> None:
        if self.runs:
            run_id = self.chance.choice(self.runs)
            done = await retry_run(self.engine.database, self.engine.catalog, 1, run_id, **WHO)
            await publish_and_propagate(self.engine, done.notifications)

    async def group(self) -> None:
        if row := await self.letter():
            await dead_letter_commands.redrive_group(self.engine, 1, row["fingerprint"], **WHO)

    async def leave(self) -> None:
        if (row := await self.letter()) and self.chance.random() < 0.3:
            verb = self.chance.choice([dead_letter_commands.ignore, dead_letter_commands.resolve])
            await verb(self.engine, 1, task_id=row["task_id"], **WHO)

    async def cancel(self) -> None:
        rows = await self.engine.database.fetch("select task_id from holdfast.live order by random() limit 3")
        ids = [row["task_id"] for row in rows]
        done = await cancel(self.engine.database, self.engine.catalog, 1, ids, grace_seconds=0.1, **WHO)
        await publish_and_propagate(self.engine, done.notifications)

    async def cancel_run(self) -> None:
        engine = self.engine
        if self.runs and self.chance.random() < 0.2:
            run_id = self.chance.choice(self.runs)
            notifications = await cancel_run(engine.database, engine.catalog, 1, run_id, grace_seconds=0.1, **WHO)
            await publish_and_propagate(engine, notifications)
        await publish_and_propagate(
            engine, await finish_cancels_once(engine.database, engine.catalog, grace_seconds=0.1)
        )

    async def campaign(self) -> None:
        engine = self.engine
        if (row := await self.letter()) and self.chance.random() < 0.2:
            await self.attempt("begin", start_campaign(engine, 1, row["fingerprint"], canary=2, at_once=20, **WHO))
        moved = await campaigns_once(engine.database, engine.catalog)
        await publish_and_propagate(engine, moved.notifications)

    async def sweep(self) -> None:
        swept = await sweep_once(self.engine.database, self.engine.catalog)
        await publish_and_propagate(self.engine, swept.notifications)

    async def reap(self) -> None:
        reaped = await reap_once(self.engine.database, self.engine.catalog)
        await publish_and_propagate(self.engine, reaped.settled.notifications)


async def test_nobody_waits_in_a_circle(holdfast_url, holdfast_settings):
    connection = await asyncpg.connect(holdfast_url)
    name = await connection.fetchval("select current_database()")
    # A circle is found at once, not after a second of waiting: as many as there are have their turn.
    await connection.execute(f"alter database \"{name}\" set deadlock_timeout = '30ms'")
    try:
        async with Engine(holdfast_url, holdfast_settings, sessions_max=40) as engine:
            crowd = Crowd(EngineHarness(engine))
            await crowd.everybody()
        print(f"\nseed {SEED}:", dict(sorted(crowd.done.items())))
        assert crowd.deadlocks == []
        assert crowd.done["exchange"] > 10 and crowd.done["redrive"] > 0 and crowd.done["cancel"] > 0
        # Also those that somebody else's session saw: they are counted when it ends.
        assert await connection.fetchval(DEADLOCKS) == 0
    finally:
        await connection.close()
