"""The heartbeat thread: renews leases on its own event loop and its own connection.

A blocked event loop, a sync action or a slow exchange does not stop it. When it cannot renew a lease, it makes the
worker stop the attempt before the lease can expire. When the attempt does not stop, it hands back what it can and ends
the process, if that is allowed. Leases of ended attempts that wait to be settled are only renewed: there is nothing to
stop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engine.leases import Report
from holdfast.execution.runner import FENCED
from holdfast.execution.running_attempt import HAND_BACK_SECONDS, RunningAttempt, kill_at, overdue_at
from holdfast.store.database import ANY_DB_ERROR
from holdfast.worker.runtime.state import WorkerState

log = logging.getLogger("holdfast.worker")

BEAT_SECONDS_MAX = 2.0
REQUESTED_SECONDS_MIN = 0.1
"""Shortest time between two requested heartbeats, because many tasks may be canceled one after the other."""
BUSY_SHARE = 0.75
"""How much of the interval is skipped after a heartbeat that found leases locked."""
UNSETTLED_MAX = 10_000
"""How many leases of ended attempts one heartbeat renews; the others follow with the next."""
UNSETTLED_SECONDS_MAX = 3600.0
"""How long the lease of one ended attempt is renewed. A report that could not be settled for so long never will be
here, so the task must become available to other workers.
"""


class HeartbeatThread:
    """Sends the heartbeats of one worker until `close`. Create it on the worker's event loop."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._channel = state.transport.heartbeat_channel()
        self._outage = state.transport.outage
        self._lease_seconds = state.settings.lease_seconds
        self._heartbeat_seconds = state.settings.heartbeat_seconds
        self._unsettled = UnsettledLeases()
        self._closing = threading.Event()
        self._wakeup = threading.Event()
        """Set when a heartbeat is requested or the thread should end."""
        self._is_requested = False
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeats", daemon=True)
        # Start with a random offset: workers started together would otherwise send heartbeats together and delay each
        # other's claims.
        self._last_beat = time.monotonic() - random.random() * self._heartbeat_seconds

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._wakeup.set()
        self._thread.join(timeout=5)

    def request(self) -> None:
        """Send a heartbeat now, because an attempt may have been asked to stop. Safe from any thread."""
        self._is_requested = True
        self._wakeup.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_until_closed())
        finally:
            if not self._closing.is_set():
                self._give_up()

    async def _beat_until_closed(self) -> None:
        tick = min(0.2, self._heartbeat_seconds / 3, self._lease_seconds / 30)
        while not self._closing.is_set():
            # The thread waits, not its event loop: nothing else runs here, and `close` wakes it at once.
            self._wakeup.wait(tick)
            self._wakeup.clear()
            attempts = self._state.running_snapshot()
            now = time.monotonic()
            self._state.publish_kill_at()
            if self._is_requested and now - self._last_beat >= min(REQUESTED_SECONDS_MIN, self._heartbeat_seconds):
                self._is_requested = False
                await self._beat(attempts, now, young_seconds=0.0)
            elif now - self._last_beat >= self._heartbeat_seconds - tick / 2:
                await self._beat(attempts, now, young_seconds=self._heartbeat_seconds * 0.9)
            await self._enforce_leases(attempts, time.monotonic())
        await self._channel.close()

    async def _beat(self, attempts: list[RunningAttempt], now: float, *, young_seconds: float) -> None:
        """Renew leases older than `young_seconds`; younger attempts usually end before they need it."""
        state = self._state
        due = {
            attempt.claimed.task_id: attempt
            for attempt in attempts
            if now - attempt.renewed_at >= young_seconds and attempt.fence_at > now
        }
        unsettled = self._unsettled.due(state.unsettled_and_committing(), now, young_seconds=young_seconds)
        try:
            async with asyncio.timeout(min(BEAT_SECONDS_MAX, self._heartbeat_seconds)):
                leases = {task_id: attempt.claimed.lease_token for task_id, attempt in due.items()}
                beat = await self._channel.beat(leases, unsettled, state.health())
        except ANY_DB_ERROR as error:
            self._outage.failed("heartbeat", error)
            self._channel.drop()
            return
        # Retry a locked lease before the next regular heartbeat: it may already be older than one interval.
        self._last_beat = now - (self._heartbeat_seconds * BUSY_SHARE if beat.busy else 0.0)
        self._outage.answered("heartbeat")
        for task_id in beat.renewed:
            due[task_id].lease_seconds = beat.lease_seconds
            due[task_id].renewed_at = now
        self._unsettled.renewed(beat.kept, now)
        self._on_loop(state.apply_heartbeat, beat, due)

    async def _enforce_leases(self, attempts: list[RunningAttempt], now: float) -> None:
        """Stop attempts whose leases are about to expire; end the process if one did not stop in time."""
        state = self._state
        fenced = [
            attempt for attempt in attempts if attempt.fence_at <= now and attempt.claimed.task_id in state.running
        ]
        if fenced:
            self._on_loop(state.interrupt, fenced, FENCED)
        if state.process is not None and overdue_at(state.running_snapshot()) <= now:
            reports = state.interrupt_and_hand_back()
            await self._hand_back(reports, seconds_max=min(HAND_BACK_SECONDS / 2, kill_at(attempts) - now))
            log.error("an attempt did not stop in time; ending this process")
            state.process.exit()

    async def _hand_back(self, reports: Sequence[Report], *, seconds_max: float) -> None:
        """Settle ended attempts and release those that never started, if the leases leave time for it."""
        if not reports or seconds_max <= 0:
            return
        try:
            async with asyncio.timeout(seconds_max):
                await self._channel.hand_back(reports)
        except ANY_DB_ERROR as error:
            log.warning("could not hand back: %s", str(error) or type(error).__name__)

    def _give_up(self) -> None:
        """Make the worker leave: nothing renews its leases or enforces them any more."""
        state = self._state
        log.critical("the heartbeat thread of this worker stopped; leaving")
        if state.process is not None:
            state.process.exit()
        self._on_loop(state.interrupt, state.running_snapshot(), FENCED)
        self._on_loop(state.stop)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call the function on the worker's event loop: only that thread changes the worker's state."""
        self._loop.call_soon_threadsafe(function, *arguments)


class _UnsettledLease(msgspec.Struct):
    since: float
    renewed_at: float


class UnsettledLeases:
    """Which leases of ended attempts a heartbeat must renew: those whose reports wait for longer than a heartbeat.

    Normally there are none.
    """

    def __init__(self) -> None:
        self._leases: dict[int, _UnsettledLease] = {}

    def due(self, reports: Iterable[Report], now: float, *, young_seconds: float) -> dict[int, Any]:
        """Return the leases to renew now (task id → token), and forget those settled since.

        `reports` are all unsettled ones, in the order in which attempts of one task ended.
        """
        before, self._leases = self._leases, {}
        due: dict[int, Any] = {}
        for report in reports:
            if now - report.leased_at < young_seconds:
                continue
            lease = before.get(report.task_id) or _UnsettledLease(now, report.leased_at)
            self._leases[report.task_id] = lease
            is_due = now - lease.renewed_at >= young_seconds and now - lease.since < UNSETTLED_SECONDS_MAX
            if is_due and len(due) < UNSETTLED_MAX:
                due[report.task_id] = report.lease_token
        return due

    def renewed(self, task_ids: Iterable[int], now: float) -> None:
        """Record that these leases were renewed at this time."""
        for task_id in task_ids:
            if (lease := self._leases.get(task_id)) is not None:
                lease.renewed_at = now
