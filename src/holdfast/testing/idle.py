"""Running an app's work to its end inside a test: a real worker and the real maintenance passes, until nothing is left.

With a clock, time is moved for pending work: retries, delayed tasks, trials of a breaker. It is never moved for what
the test itself decides: the slots of schedules, and events that a flow waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from holdfast.authoring.action import in_process
from holdfast.authoring.app import App
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks.reconcile import unclaimed_lanes
from holdfast.engine.maintenance.loops import Loops
from holdfast.errors import WaitTimeout
from holdfast.testing.clock import DatabaseClock
from holdfast.worker.runtime.worker import Worker

LOOK_SECONDS = 0.01
PASSES_SECONDS = 0.25
"""How often the slower passes run while tasks run; when none does, they run at once."""

# A task whose breaker will be tried again waits for that instant; a breaker held open manually has none. An open run
# without a task, a wait or an open sub-flow is about to change: the end of a sub-flow is being propagated, committed or
# not.
_LIVE = """
select count(*) filter (where t.state <> 'w' and b.breaker_id is null) + (
    select count(*)
    from holdfast.run r
    where r.state = 'o' and r.paused_at is null
      and not exists (select from holdfast.live t where t.run_id = r.run_id)
      and not exists (select from holdfast.node n where n.run_id = r.run_id and n.state = 'w')
      and not exists (select from holdfast.run c where c.parent_run_id = r.run_id and c.state = 'o')
  ) as busy,
  count(*) filter (where t.state = 'w' or b.breaker_id is not null) as waiting,
  extract(epoch from least(min(t.due_at), min(b.trial_at)) - holdfast.instant())::double precision as due_seconds,
  extract(epoch from (select min(n.deadline) from holdfast.node n where n.state = 'w') - holdfast.instant()
    )::double precision as deadline_seconds
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
left join holdfast.breaker b on t.state = 'q' and b.tenant_id = l.tenant_id and b.action = l.action and b.state = 'o'
  and b.trial_at > holdfast.instant()
"""
# The scheduler checks a waiting slot once a second; here it is checked as soon as the previous firing may have ended.
_LOOK_AT_WAITING = """
update holdfast.schedule s
set look_at = least(s.look_at, holdfast.instant())
where exists (select from holdfast.slot f where f.schedule_id = s.schedule_id and f.state = 'w')
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
    """Counts of tasks that completed, failed for good or were canceled, of retried attempts, and of waiting tasks."""

    completed: int
    failed: int
    canceled: int
    retried: int
    waiting: int


async def run_until_idle(
    app: App,
    database: Engine | str,
    *,
    clock: DatabaseClock | None = None,
    queues: Sequence[str] | None = None,
    seconds_max: float = 30.0,
) -> Summary:
    """Work until every task has ended or waits for the future; with `clock`, until every task has ended.

    `clock` is moved only while nothing runs, to the instant when the next retry or delayed task is due or a breaker is
    tried again. Slots that are due fire; use `clock.advance` to reach later slots or the deadline of a wait for an
    event. `WaitTimeout` reports how many tasks are left after `seconds_max`, including tasks that no action of the app
    can run.
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
            await _either(running, worker.ready)
            waiting = await _Drain(engine, worker, clock, seconds_max).until_idle(running)
        finally:
            worker.stop()
            await running
        done = await engine.database.fetchrow(_DONE, worker.worker_id)
        return Summary(**dict(done), waiting=waiting)


class _Live(msgspec.Struct, frozen=True):
    """What is left to do, and how long until the next part is due. Fields in the order of the query."""

    busy: int
    waiting: int
    due_seconds: float | None
    deadline_seconds: float | None


class _Drain:
    """Runs maintenance passes, polls and moves the clock next to a worker, until nothing is left or the time is up."""

    def __init__(self, engine: Engine, worker: Worker, clock: DatabaseClock | None, seconds_max: float) -> None:
        self._engine = engine
        self._worker = worker
        self._clock = clock
        # No other process uses the database, and the clock may stand still.
        self._loops = Loops(engine, campaign_rest=0.0)
        self._seconds_max = seconds_max
        self._now = asyncio.get_running_loop().time

    async def until_idle(self, running: asyncio.Task[None]) -> int:
        """Return how many tasks wait for the future at the end."""
        deadline, passes_at = self._now() + self._seconds_max, 0.0
        while not running.done():
            await self._loops.reap()
            await self._loops.reconcile()
            live = await self._read_live()
            if not live.busy or self._now() >= passes_at:
                # The end of one run may release nodes of another, so propagate ends before deciding. The passes may
                # have missed tasks that ended while they ran, even tasks that they released themselves.
                was_busy, begun = bool(live.busy), self._worker.state.started_count
                await self._make_passes()
                passes_at = self._now() + PASSES_SECONDS
                live = await self._read_live()
                was_busy = was_busy or self._worker.state.started_count > begun
                if not (was_busy or live.busy) and (self._clock is None or live.due_seconds is None):
                    return live.waiting
            if self._now() > deadline:
                raise self._timeout(live)
            if live.busy:
                await asyncio.sleep(LOOK_SECONDS)
            elif self._clock is not None and live.due_seconds is not None:
                await self._advance(live)
        return 0

    async def _read_live(self) -> _Live:
        return _Live(*await self._engine.database.fetchrow(_LIVE))

    async def _make_passes(self) -> None:
        """Run the passes of a server that move work; those that count, delete and send do not matter to a test."""
        loops = self._loops
        await loops.runs()
        while await loops.sweep() is not None:
            """There is another page."""
        await loops.campaigns()
        await loops.sweep_datasets()
        await self._engine.database.fetch(_LOOK_AT_WAITING)
        await loops.schedule()

    async def _advance(self, live: _Live) -> None:
        """Move the clock to what is due next, but not past a deadline, which must take effect first."""
        assert self._clock is not None and live.due_seconds is not None
        moments = [live.due_seconds, *([] if live.deadline_seconds is None else [live.deadline_seconds])]
        await self._clock.advance(seconds=max(0.0, min(moments)) + 0.001)
        # No notification says that a breaker may be tried again: workers find out when they poll.
        self._engine.notifier.notify(lanes=await unclaimed_lanes(self._engine.database))

    def _timeout(self, live: _Live) -> WaitTimeout:
        left = live.busy or live.waiting
        return WaitTimeout(
            f"{left} tasks have not ended after {self._seconds_max:g} s.",
            advice="Check that all of them belong to this app, that no queue is paused and that no breaker "
            "is held open."
            if live.busy
            else "Time was advanced for all of them: check for endless retries, or a schedule that always fires.",
        )


async def _either(running: asyncio.Task[None], ready: asyncio.Event) -> None:
    """Wait until the worker signed on or failed: its declarations, including schedules, are part of the work."""
    signing_on = asyncio.ensure_future(ready.wait())
    await asyncio.wait({running, signing_on}, return_when=asyncio.FIRST_COMPLETED)
    signing_on.cancel()


@asynccontextmanager
async def _opened(app: App, database: Engine | str) -> AsyncIterator[Engine]:
    if isinstance(database, Engine):
        yield database
        return
    async with Engine(database, app.settings) as engine:
        yield engine
