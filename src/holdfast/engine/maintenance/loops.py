"""The maintenance loops: reap, reconcile, sweep, vacuum, retention and others, each a bounded pass at its own interval.

Any number of processes may run them; the result is the same as with one. They are engine code, not tasks, and need no
user code. A pass that fails is logged and repeated at its next interval.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from holdfast.core.health.clock_watch import ClockWatch
from holdfast.engine.campaigns.advance import campaigns_once
from holdfast.engine.datasets.cutover import finish_rollbacks_once
from holdfast.engine.datasets.stage import SWEEP_BATCH, forget_commits_once, sweep_stages_once
from holdfast.engine.datasets.take_back import TAKE_BATCH, take_back_once
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.dead_letters.sweep import REPAIR_BATCH, repair_letters_once, sweep_once
from holdfast.engine.lifecycle.runs.children import answer_once, retry_children_once
from holdfast.engine.lifecycle.runs.commands import finish_cancels_once
from holdfast.engine.lifecycle.runs.items import release_stalled_items_once
from holdfast.engine.lifecycle.runs.pause import free_children_once, hold_children_once
from holdfast.engine.lifecycle.runs.signals import START, deliver_once, expire_waits_once
from holdfast.engine.lifecycle.tasks.reap import PREPARE_SECONDS, lose_workers_once, reap_once
from holdfast.engine.lifecycle.tasks.reconcile import PROMOTE_BATCH, reconcile_once, seconds_until_due, unclaimed_lanes
from holdfast.engine.maintenance.retention import retain_once, vacuum_once
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.queries.counts import count_once
from holdfast.engine.schedules.fire import schedule_once, seconds_until_slot
from holdfast.engine.wakeups.relay import Relay
from holdfast.engine.webhooks.deliver import Deliveries
from holdfast.engine.workers.probe import probe_once
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded, is_possible
from holdfast.store.database import ANY_DB_ERROR
from holdfast.store.sql.tasks import lease as lease_sql
from holdfast.wakeups.carriers import is_external

log = logging.getLogger("holdfast.loops")

REPUBLISH_SECONDS = 5.0
RETAIN_SECONDS = 60.0
COUNT_SECONDS = 10.0
EPOCH_SECONDS = 2.0
"""New connections are checked when they open; a pooler may route an old one to another server."""
DATASETS_SECONDS = 5.0
DUE_SECONDS_MIN = 0.02
STUCK_SECONDS = 60.0
"""How long a lease that could not be settled is skipped: at the head of every batch it would slow down all others."""
BUSY_SECONDS = 2.0
"""How long a node is skipped whose run was locked."""
CAMPAIGN_SECONDS = 0.25
CAMPAIGN_REST = 14.0
"""Campaigns rest fourteen times as long as a pass over them took, so together they use a fifteenth of one connection's
time, whichever processes run the passes."""
REST = 10.0
REST_SECONDS_MAX = 30.0
"""A pass that found nothing more to do rests ten times as long as it took: while an old snapshot keeps dead rows, a
query of the hot table reads all of them, and must not slow down the tasks. The reaper rests half a lease at most."""
PAGE_SECONDS = 0.05
"""Pause between two pages of a sweep, so that it does not compete with the tasks that it requeues."""


class Loops:
    """All maintenance loops. Call `run()` until cancelled, or single passes from a test."""

    def __init__(self, engine: Engine, *, campaign_rest: float = CAMPAIGN_REST) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._campaign_rest = campaign_rest
        self._swept_to = 0
        self._waits_to = START
        self._stuck: set[int] = set()
        self._stuck_until = 0.0
        self._busy: set[int] = set()
        self._busy_until = 0.0
        self._clock: ClockWatch | None = None
        """Set only where passes are repeated: a single pass has no earlier reading of the database's clock to compare
        with."""
        self._guarded = Guarded(EgressRules.of(engine.settings.egress))
        self._deliveries = Deliveries(engine, self._guarded)

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            await self._deliveries.close()
            await self._guarded.close()

    def watch_clock(self) -> None:
        """Compare the database's clock with this process's clock between two passes of the reaper from now on."""
        self._clock = ClockWatch()

    async def _run(self) -> None:
        self.watch_clock()
        loops = self._settings.loops
        # A lease of one second needs a reaper that runs more often than once a second.
        reap_seconds = min(loops.reap_seconds, self._settings.worker.lease_seconds / 4)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._repeat("reap", self.reap, reap_seconds, rest_max=self._settings.worker.lease_seconds / 2)
            )
            group.create_task(self._repeat("reconcile", self.reconcile, loops.reconcile_seconds))
            group.create_task(self._repeat("runs", self.runs, loops.reconcile_seconds))
            group.create_task(self._repeat("schedule", self.schedule, loops.schedule_seconds))
            group.create_task(self._repeat("republish", self.republish, REPUBLISH_SECONDS))
            group.create_task(self._repeat("sweep", self.sweep, loops.sweep_seconds))
            group.create_task(self._repeat("campaigns", self.campaigns, loops.sweep_seconds))
            group.create_task(self._repeat("repair letters", self.repair_letters, RETAIN_SECONDS))
            group.create_task(self._repeat("vacuum", self.vacuum, loops.vacuum_seconds))
            group.create_task(self._repeat("retain", self.retain, RETAIN_SECONDS))
            group.create_task(self._repeat("count", self.count, COUNT_SECONDS))
            group.create_task(self._repeat("epoch", self.epoch, EPOCH_SECONDS))
            group.create_task(self._repeat("datasets", self.sweep_datasets, DATASETS_SECONDS))
            webhooks = self._settings.webhooks
            # Reporters make no HTTP requests, so they work without the HTTP client being installed.
            if is_possible() or webhooks.reporters or self._settings.is_local:
                group.create_task(self._repeat("webhooks", self.deliver, webhooks.look_seconds))
            if is_possible():
                group.create_task(self._repeat("probes", self.probe, webhooks.probe_seconds))
            if is_external(self._settings.wake):
                group.create_task(Relay(self._engine).run())

    async def reap(self) -> float | None:
        """End attempts without a valid lease; repeat at once after a full batch."""
        if time.monotonic() >= self._stuck_until:
            self._stuck.clear()
        if time.monotonic() >= self._busy_until:
            self._busy.clear()
        worker = self._settings.worker
        reaped = await reap_once(
            self._engine.database,
            self._engine.catalog,
            leave=self._stuck | self._busy,
            overdue_seconds=PREPARE_SECONDS + worker.cancel_grace_seconds + worker.lease_seconds,
            by_time=await self._is_clock_steady(),
        )
        if reaped.stuck and not self._stuck:
            self._stuck_until = time.monotonic() + STUCK_SECONDS
        self._stuck.update(reaped.stuck)
        if reaped.busy and not self._busy:
            self._busy_until = time.monotonic() + BUSY_SECONDS
        self._busy.update(reaped.busy)
        self._engine.failures.publish_all(self._engine.catalog, reaped.ended, reaped.settled.refused)
        await publish_and_propagate(self._engine, reaped.settled.notifications)
        return 0.0 if reaped.is_full else None

    async def retire_worker(self) -> float | None:
        """End the attempts of workers known to be dead; repeat at once after a full batch."""
        reaped = await reap_once(self._engine.database, self._engine.catalog, by_time=False)
        await publish_and_propagate(self._engine, reaped.settled.notifications)
        return 0.0 if reaped.is_full else None

    async def _is_clock_steady(self) -> bool:
        """Return whether leases may be ended by the database's clock: not for one lease time after it was set
        forward."""
        if self._clock is None:
            return True
        asked_at = time.monotonic()
        database_at = await lease_sql.read_clock(self._engine.database)
        lease_seconds = self._settings.worker.lease_seconds
        before, answered_at = self._clock.waits_until, time.monotonic()
        self._clock = self._clock.read(
            database_at, asked_at=asked_at, answered_at=answered_at, lease_seconds=lease_seconds
        )
        if self._clock.waits_until > before:
            log.warning("the database's clock was set forward; nothing is reaped for %g s", lease_seconds)
        return self._clock.is_steady(answered_at)

    async def reconcile(self) -> float | None:
        """Promote due tasks; return when the next one is due."""
        promoted = await reconcile_once(self._engine.database)
        self._engine.notifier.notify(lanes=promoted.lanes)
        if promoted.count + promoted.held == PROMOTE_BATCH:
            return 0.0
        due = await seconds_until_due(self._engine.database)
        return None if due is None else max(DUE_SECONDS_MIN, due)

    async def runs(self) -> float | None:
        """Propagate between runs: ends to parents, events to waits, cancellations and pauses to child runs."""
        database, catalog = self._engine.database, self._engine.catalog
        notifications = await answer_once(database, catalog)
        notifications = notifications.and_(await retry_children_once(database, catalog))
        delivered = await deliver_once(database, catalog, after=self._waits_to)
        self._waits_to = delivered.after
        notifications = notifications.and_(delivered.notifications)
        notifications = notifications.and_(await expire_waits_once(database, catalog))
        grace = self._settings.worker.cancel_grace_seconds
        notifications = notifications.and_(await finish_cancels_once(database, catalog, grace_seconds=grace))
        await hold_children_once(database)
        notifications = notifications.and_(await free_children_once(database, catalog))
        notifications = notifications.and_(await release_stalled_items_once(database, catalog))
        await publish_and_propagate(self._engine, notifications)
        return None

    async def schedule(self) -> float | None:
        """Fire due slots; return when the next one is due."""
        database, grace = self._engine.database, self._settings.worker.cancel_grace_seconds
        scheduled = await schedule_once(database, self._engine.catalog, grace_seconds=grace)
        await publish_and_propagate(self._engine, scheduled.notifications)
        due = await seconds_until_slot(database)
        return None if due is None else max(DUE_SECONDS_MIN, due)

    async def republish(self) -> float | None:
        """Notify lanes with queued tasks again, in case a notification was lost, and mark silent workers as lost."""
        self._engine.notifier.notify(lanes=await unclaimed_lanes(self._engine.database))
        await lose_workers_once(self._engine.database, silent_seconds=self._engine.silent_seconds)
        return None

    async def sweep(self) -> float | None:
        """Sweep the next page of dead letters; repeat soon if there is another."""
        swept = await sweep_once(self._engine.database, self._engine.catalog, after=self._swept_to)
        self._swept_to = swept.after
        await publish_and_propagate(self._engine, swept.notifications)
        return PAGE_SECONDS if swept.after else None

    async def campaigns(self) -> float | None:
        """Advance every campaign one step; repeat soon while one is in progress."""
        engine = self._engine
        silent_seconds = engine.silent_seconds
        moved = await campaigns_once(
            engine.database, engine.catalog, silent_seconds=silent_seconds, rest=self._campaign_rest
        )
        await publish_and_propagate(self._engine, moved.notifications)
        return CAMPAIGN_SECONDS if moved.under_way else None

    async def repair_letters(self) -> float | None:
        """Repair dead letters that a settlement did not update; repeat soon if there are more."""
        return PAGE_SECONDS if await repair_letters_once(self._engine.database) >= REPAIR_BATCH else None

    async def vacuum(self) -> float | None:
        await vacuum_once(self._engine.database)
        return None

    async def retain(self) -> float | None:
        """Delete history beyond its retention; repeat soon if there is more."""
        database, days = self._engine.database, self._settings.loops.retention_days
        retained = await retain_once(database, days=days)
        is_behind = await forget_commits_once(database, days=days) or retained.is_behind
        return PAGE_SECONDS if is_behind else None

    async def count(self) -> float | None:
        """Add up completed tasks, so that later counts are cheap."""
        await count_once(self._engine.database)
        return None

    async def epoch(self) -> float | None:
        """Detect that PostgreSQL is another server than before."""
        await self._engine.look()
        return None

    async def sweep_datasets(self) -> float | None:
        """Delete staged rows that will not be committed, delete rows that re-driven runs owe, and finish rollbacks."""
        engine = self._engine
        grace = self._settings.worker.cancel_grace_seconds
        done = await finish_rollbacks_once(engine.database, engine.catalog, grace_seconds=grace)
        await publish_and_propagate(engine, done)
        is_full = await take_back_once(engine.database) == TAKE_BATCH
        return 0.0 if await sweep_stages_once(engine.database) == SWEEP_BATCH or is_full else None

    async def deliver(self) -> float | None:
        """Start deliveries of events to webhooks that are due."""
        await self._deliveries.begin()
        return None

    async def probe(self) -> float | None:
        """Probe the workers that offer a URL."""
        await probe_once(self._engine, self._guarded)
        return None

    async def _repeat(
        self,
        name: str,
        step: Callable[[], Awaitable[float | None]],
        seconds: float,
        *,
        rest_max: float = REST_SECONDS_MAX,
    ) -> None:
        outage = self._engine.database.outage
        while True:
            pause: float | None = None
            began = time.monotonic()
            try:
                pause = await step()
                outage.answered(name)
            except ANY_DB_ERROR as error:
                outage.failed(name, error)
            except Exception:
                # A row cannot be read, or this is a bug; the other loops must go on.
                log.exception("%s pass failed, will try again", name)
            await asyncio.sleep(
                _pause(seconds, pause, rest=min(rest_max, REST * (time.monotonic() - began))) * random.uniform(0.8, 1.0)
            )


def _pause(seconds: float, asked: float | None, *, rest: float) -> float:
    """Return the pause after a pass: the requested one if it is shorter than the interval, else the interval or the
    rest."""
    return asked if asked is not None and asked < seconds else max(seconds, rest)
