"""What comes after a crash: other processes, whose time passes, bring everything to an end."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from tests.waiting import eventually

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.engine.lifecycle.tasks.exchange import exchange
from holdfast.engine.lifecycle.tasks.reap import reap_once
from holdfast.engine.lifecycle.tasks.reconcile import reconcile_once
from holdfast.store.statements import sql
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness

BY_SURVIVOR = b'"survivor"'
PASSES_MAX = 20
_ENDINGS = """
select t.task_id::bigint as task_id, t.state, t.attempt, t.action, t.retry_count, t.loss_count, t.key, a.output,
  t.next_retry_at, convert_from(t.input, 'utf8') as input
from holdfast.tasks t
left join holdfast.attempt a on a.task_id = t.task_id::bigint and a.state = 'c'
where t.task_id::bigint > $1
order by 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one task ended, and by whom if it completed."""

    task_id: int
    state: str
    attempt: int
    output: bytes | None
    key: str | None
    round: int


async def last_task_id(engine: Engine) -> int:
    return int(await engine.database.fetchval("select coalesce(max(task_id), 0) from holdfast.body"))


async def endings(engine: Engine, *, after: int) -> list[Ended]:
    """Every task younger than `after`, one entry for each place it is found in."""
    return [
        Ended(
            task_id=row["task_id"],
            state=row["state"] if row["next_retry_at"] is None else "retrying",
            attempt=row["attempt"],
            output=row["output"],
            key=row["key"],
            round=json.loads(row["input"] or "{}").get("round", 0),
        )
        for row in await engine.database.fetch(_ENDINGS, after)
    ]


_IS_FREE_OF_VICTIMS = """
select not exists (
  select from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and state like 'idle in transaction%'
    and application_name = 'holdfast'
)
"""


async def free_of_victims(engine: Engine) -> None:
    """Wait until the server noticed that the dead are gone: until then their locks are held."""
    await eventually(lambda: engine.database.fetchval(_IS_FREE_OF_VICTIMS), pause_seconds=0.002)


async def drain(engine: Engine, clock: DatabaseClock) -> None:
    """Reap, promote, claim and complete as a fresh worker would until nothing is live; the clock does the waiting."""
    await free_of_victims(engine)
    claimer = await _survivor(engine)
    for _ in range(PASSES_MAX):
        await clock.advance(seconds=400)
        while (await reap_once(engine.database, engine.catalog)).count:
            pass
        await reconcile_once(engine.database)
        await EngineHarness(engine).runs.repair_once()
        await _complete_all(engine, claimer)
        await EngineHarness(engine).runs.repair_once()
        if not await engine.database.fetchval("select count(*) from holdfast.live"):
            return
    raise AssertionError(f"still live: {await engine.database.fetch('select * from holdfast.live')}")


async def register(engine: Engine, name: str, actions: list[str]) -> int:
    row = await engine.database.fetchrow(sql("register_worker"), name, "", None, actions, 100, "{}", 1, None)
    return int(row["worker_id"])


async def _survivor(engine: Engine) -> Claimer:
    actions = [row["action"] for row in await engine.database.fetch("select distinct action from holdfast.lane")]
    worker_id = await register(engine, "survivor", actions)
    return Claimer(WorkerIdentity(worker_id=worker_id, actions=actions, queues=None, lease_seconds=10.0))


async def _complete_all(engine: Engine, claimer: Claimer) -> None:
    reports: list[Any] = []
    async with engine.database.session() as session:
        while True:
            done = await exchange(session, engine.catalog, claimer, reports, 100, now=time.monotonic())
            assert not done.settled.refused
            if not done.claimed:
                return
            reports = [report_of(claimed, Completed(BY_SURVIVOR)) for claimed in done.claimed]
