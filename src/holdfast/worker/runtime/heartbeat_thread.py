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
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.engine.leases import Report
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.execution.running_attempt import HAND_BACK_SECONDS, RunningAttempt, kill_at, overdue_at
from holdfast.store.database import ANY_DB_ERROR
from holdfast.store.outage import Outage
from holdfast.worker.runtime.unsettled_leases import UnsettledLeases
from holdfast.worker.transport.contract import HeartbeatChannel

log = logging.getLogger("holdfast.worker")

BEAT_SECONDS_MAX = 2.0
ASKED_SECONDS_MIN = 0.1
"""Shortest time between two requested heartbeats, because many tasks may be canceled one after the other."""
BUSY_SHARE = 0.75
"""How much of the interval is skipped after a heartbeat that found leases locked."""


class LeaseEvents(Protocol):
    """Callbacks for what the heartbeat thread finds; called from that thread."""

    def on_beat(self, beat: Beat, asked: Mapping[int, RunningAttempt]) -> None: ...

    def on_fence(self, entries: list[RunningAttempt]) -> None: ...

    def on_overdue(self) -> Sequence[Report] | None:
        """Return what can be handed back before the process ends; None if it may not end."""
        ...

    def on_heartbeats_stopped(self) -> None:
        """Handle the end of the heartbeat thread: nothing renews or guards the leases any more."""
        ...

    def on_end(self) -> None:
        """End the process."""
        ...


class HeartbeatThread:
    """Sends the heartbeats of one worker until `close`."""

    def __init__(
        self,
        pulse: HeartbeatChannel,
        held: dict[int, RunningAttempt],
        ended: Callable[[], Sequence[Report]],
        body: LeaseEvents,
        *,
        lease_seconds: float,
        heartbeat_seconds: float,
        publish: Callable[[], None],
        health: Callable[[], str],
        outage: Outage,
    ) -> None:
        self._outage = outage
        self._pulse = pulse
        self._held = held
        self._keeping = UnsettledLeases(ended)
        self._body = body
        self._lease_seconds = lease_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._publish = publish
        self._health = health
        self._stopping = threading.Event()
        self._called = threading.Event()
        """Set when a heartbeat is requested or the thread should end."""
        self._is_asked = False
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeats", daemon=True)
        # Start with a random offset: workers started together would otherwise send heartbeats together and delay each
        # other's claims.
        self._last_beat = time.monotonic() - random.random() * heartbeat_seconds

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._called.set()
        self._thread.join(timeout=5)

    def beat_soon(self) -> None:
        """Send a heartbeat now, because an attempt may have been asked to stop. Safe from any thread."""
        self._is_asked = True
        self._called.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        finally:
            if not self._stopping.is_set():
                self._body.on_heartbeats_stopped()

    async def _live(self) -> None:
        tick = min(0.2, self._heartbeat_seconds / 3, self._lease_seconds / 30)
        while not self._stopping.is_set():
            # The thread waits, not its event loop: nothing else runs here, and `close` wakes it at once.
            self._called.wait(tick)
            self._called.clear()
            entries = list(self._held.values())
            now = time.monotonic()
            self._publish()
            if self._is_asked and now - self._last_beat >= min(ASKED_SECONDS_MIN, self._heartbeat_seconds):
                self._is_asked = False
                await self._beat(entries, now, young_seconds=0.0)
            elif now - self._last_beat >= self._heartbeat_seconds - tick / 2:
                await self._beat(entries, now, young_seconds=self._heartbeat_seconds * 0.9)
            await self._guard(entries, time.monotonic())
        await self._pulse.close()

    async def _beat(self, entries: list[RunningAttempt], now: float, *, young_seconds: float) -> None:
        """Renew leases older than `young_seconds`; younger attempts usually end before they need it."""
        due = {
            entry.claimed.task_id: entry
            for entry in entries
            if now - entry.renewed_at >= young_seconds and entry.fence_at > now
        }
        ended = self._keeping.due(now, young_seconds=young_seconds)
        try:
            async with asyncio.timeout(min(BEAT_SECONDS_MAX, self._heartbeat_seconds)):
                leases = {task_id: entry.claimed.lease_token for task_id, entry in due.items()}
                beat = await self._pulse.beat(leases, ended, self._health())
        except ANY_DB_ERROR as error:
            self._outage.failed("heartbeat", error)
            self._pulse.drop()
            return
        # Retry a locked lease before the next regular heartbeat: it may already be older than one interval.
        self._last_beat = now - (self._heartbeat_seconds * BUSY_SHARE if beat.busy else 0.0)
        self._outage.answered("heartbeat")
        for task_id in beat.renewed:
            due[task_id].lease_seconds = beat.lease_seconds
            due[task_id].renewed_at = now
        self._keeping.kept(beat.kept, now)
        self._body.on_beat(beat, due)

    async def _guard(self, entries: list[RunningAttempt], now: float) -> None:
        if fenced := [entry for entry in entries if entry.fence_at <= now and entry.claimed.task_id in self._held]:
            self._body.on_fence(fenced)
        if overdue_at(self._held.copy().values()) <= now and (rest := self._body.on_overdue()) is not None:
            await self._hand_back(rest, seconds_max=min(HAND_BACK_SECONDS / 2, kill_at(entries) - now))
            self._body.on_end()

    async def _hand_back(self, reports: Sequence[Report], *, seconds_max: float) -> None:
        """Settle ended attempts and release those that never started, if the leases leave time for it."""
        if not reports or seconds_max <= 0:
            return
        try:
            async with asyncio.timeout(seconds_max):
                await self._pulse.hand_back(reports)
        except ANY_DB_ERROR as error:
            log.warning("could not hand back: %s", str(error) or type(error).__name__)
