"""Run an app's work to its end inside a test: a real worker and the real repair passes, until nothing is left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from holdfast.action import in_process
from holdfast.app import App
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.loops import Loops
from holdfast.dispatcher.take_back import take_back_once
from holdfast.errors import WaitTimeout
from holdfast.testing.clock import Clock
from holdfast.worker.loop import Worker

LOOK_SECONDS = 0.01
_LIVE = """
select count(*) filter (where state <> 'w') as busy, count(*) filter (where state = 'w') as waiting,
  extract(epoch from min(due_at) - holdfast.instant())::double precision as due_seconds
from holdfast.live
"""
_DONE = """
select
  (select count(*) from holdfast.attempt where worker_id = $1 and state = 'c') as completed,
  (select count(*) from holdfast.attempt where worker_id = $1 and state = 'x') as canceled,
  (select count(*) from holdfast.failure where worker_id = $1 and decision = 'stop') as failed,
  (select count(*) from holdfast.failure where worker_id = $1 and decision = 'retry') as retried
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What ran: tasks that completed, failed for good or were canceled, attempts that were retried, and what waits."""

    completed: int
    failed: int
    canceled: int
    retried: int
    waiting: int


async def run_until_idle(
    app: App,
    database: Engine | str,
    *,
    clock: Clock | None = None,
    queues: Sequence[str] | None = None,
    seconds_max: float = 30.0,
) -> Summary:
    """Work until every task is over or waits for the future; with `clock`, until every task is over.

    `clock` is moved only while nothing runs, to the moment the next retry or delayed task is due. `WaitTimeout` names
    how many tasks are left after `seconds_max`, which includes work that no action of the app can run.
    """
    async with _opened(app, database) as engine:
        worker = Worker(
            engine,
            {name: in_process(action) for name, action in app.actions.items()},
            flows=app.flows,
            queues=queues,
            name="test",
            version=app.version,
            schedules=app.schedules.values(),
            origin=f"app:{app.name}",
            datasets=app.datasets,
            runs_launched=True,
        )
        running = asyncio.create_task(worker.run(), name="holdfast-test-worker")
        try:
            waiting = await _drain(engine, clock, running, seconds_max)
        finally:
            worker.stop()
            await running
        done = await engine.database.fetchrow(_DONE, worker.worker_id)
        return Summary(**dict(done), waiting=waiting)


async def _drain(engine: Engine, clock: Clock | None, running: asyncio.Task[None], seconds_max: float) -> int:
    loops = Loops(engine)
    deadline = asyncio.get_running_loop().time() + seconds_max
    while not running.done():
        await loops.reap()
        await loops.reconcile()
        live = await engine.database.fetchrow(_LIVE)
        if not live["busy"]:
            # The end of one run may be about to let nodes of another go: what runs tell each other is told first.
            await loops.runs()
            live = await engine.database.fetchrow(_LIVE)
        if not live["busy"]:
            if clock is None or not live["waiting"]:
                await take_back_once(engine.database)
                return int(live["waiting"])
            await clock.advance(seconds=max(0.0, live["due_seconds"]) + 0.001)
        elif asyncio.get_running_loop().time() > deadline:
            raise WaitTimeout(
                f"{live['busy']} tasks are not over after {seconds_max:g} s.",
                advice="Are they all of this app, and is no queue paused?",
            )
        else:
            await asyncio.sleep(LOOK_SECONDS)
    return 0


@asynccontextmanager
async def _opened(app: App, database: Engine | str) -> AsyncIterator[Engine]:
    if isinstance(database, Engine):
        yield database
        return
    async with Engine(database, app.settings) as engine:
        yield engine
