"""The worker: claims what it can run, runs it, reports in batches, and gives back what it cannot finish.

One exchange is in flight at a time; what ends meanwhile goes with the next. A lost database stops nothing by itself:
reports wait, the heart decides when work must stop, and the loop reconnects and goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.action import Action, Isolation
from holdfast.core.outcome import Canceled, Outcome, Released
from holdfast.dispatcher.claim import Claimer, WorkerIdentity, held_by
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.exchange import exchange
from holdfast.dispatcher.heartbeat import Beat
from holdfast.dispatcher.leases import Claimed, Report, report_of
from holdfast.errors import HoldfastError
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import AWAY, Session
from holdfast.store.statements import sql
from holdfast.wake.bell import WAKE_CHANNEL
from holdfast.wake.listener import Listener
from holdfast.worker.attempts import Attempts
from holdfast.worker.execute import CANCELED, FENCED, INTERRUPTED, Isolator, Runner
from holdfast.worker.heart import Heart
from holdfast.worker.held import FOREVER, Held, kill_at

_REGISTER = sql("register_worker")
_RETIRE = sql("retire_worker")

log = logging.getLogger("holdfast.worker")

RECONNECT_SECONDS_MAX = 5.0
THREADS_MAX = 256
INTERRUPT_SECONDS_MAX = 5.0


class Worker:
    """One incarnation in one process. `run()` until `stop()`."""

    def __init__(
        self,
        engine: Engine,
        actions: Mapping[str, Action[..., Any]],
        *,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
        name: str = "",
        version: str = "",
        isolator: Isolator | None = None,
        publish: Callable[[int, float], None] | None = None,
        exit_process: Callable[[], None] | None = None,
    ) -> None:
        settings = engine.settings.worker
        self.engine = engine
        self.actions = dict(actions)
        self.worker_id = 0
        self.queues = None if queues is None else list(queues)
        self.slots = slots or settings.slots
        self.name = name or f"{platform.node()}:{os.getpid()}"
        self.version = version
        self._settings = settings
        self._publish = publish or (lambda _worker_id, _kill_at: None)
        self._publishing = threading.Lock()
        self._exit_process = exit_process
        self._held: dict[int, Held] = {}
        self._reports: list[Report] = []
        self._given_up: dict[Any, float] = {}
        self._notes: list[tuple[Claimed, str, dict[str, Any]]] = []
        self._signal = asyncio.Event()
        self._may_have_work = True
        self._is_stopping = False
        self._finish_by = FOREVER
        self._is_draining = False
        self._session: Session | None = None
        self._threads = ThreadPoolExecutor(min(self.slots, THREADS_MAX), "holdfast-action")
        self._isolator = isolator
        self._runner = Runner(
            threads=self._threads,
            isolator=isolator,
            output_bytes_max=engine.settings.limits.output_bytes_max,
            note=self._take_note,
        )
        self._attempts = Attempts(self._attempt)
        self.ready = asyncio.Event()
        self.completed_count = 0

    def stop(self, *, within_seconds: float | None = None) -> None:
        """Take no more work; finish what runs, within the shutdown time or less, and leave."""
        self._is_stopping = True
        seconds = self._settings.shutdown_seconds if within_seconds is None else within_seconds
        self._finish_by = min(self._finish_by, time.monotonic() + seconds)
        self._signal.set()

    @property
    def is_idle(self) -> bool:
        """Whether no attempt runs: after `run`, a thread that would not stop may be left."""
        return not self._held

    async def run(self) -> None:
        """Work until stopped. Whatever happens on the way out, nothing stays claimed that could be handed back."""
        self._loop = asyncio.get_running_loop()
        await self._register()
        listener = Listener(self.engine.database, WAKE_CHANNEL, self._on_ring)
        heart = Heart(
            self.engine.database.url,
            self.worker_id,
            self._held,
            self,
            lease_seconds=self._settings.lease_seconds,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            publish=self._show_kill_at,
            health=self._health,
            catalog=self.engine.catalog,
        )
        await listener.start()
        heart.start()
        self.ready.set()
        try:
            await self._work()
            await self._wind_down()
        finally:
            heart.close()
            await listener.close()
            await self._leave()

    async def _register(self) -> None:
        for action in self.actions.values():
            await self.engine.catalog.declare(DEFAULT_TENANT_ID, action.name, action.queue, action.policy, self.version)
        row = await self.engine.database.fetchrow(
            _REGISTER, self.name, self.version, self.queues, sorted(self.actions), self.slots, "{}"
        )
        self.worker_id = row["worker_id"]
        self._show_kill_at()
        identity = WorkerIdentity(
            worker_id=self.worker_id,
            actions=sorted(self.actions),
            queues=self.queues,
            lease_seconds=self._settings.lease_seconds,
        )
        self._claimer = Claimer(identity)

    async def _work(self) -> None:
        poll_at = 0.0
        while not self._is_stopping:
            now = time.monotonic()
            if now >= poll_at:
                self._may_have_work = True
            want = self._want()
            if self._reports or (want and self._may_have_work):
                if not await self._exchange(want):
                    continue
                poll_at = time.monotonic() + self._settings.poll_seconds * random.uniform(0.75, 1.25)
                if self._may_have_work and self._want():
                    continue
            await self._wait(poll_at - time.monotonic() if self._want() else FOREVER)

    def _want(self) -> int:
        return 0 if self._is_draining or self._is_stopping else self.slots - len(self._held)

    async def _wait(self, seconds: float) -> None:
        """Wait for an attempt to end, a wake-up, or the next poll."""
        if not self._signal.is_set():
            try:
                await asyncio.wait_for(self._signal.wait(), None if seconds == FOREVER else max(0.0, seconds))
            except TimeoutError:
                return
        self._signal.clear()

    async def _exchange(self, want: int) -> bool:
        """One exchange with the database; False when it failed and was put off. Reports stay until accepted."""
        reports = self._reports[:]
        sent_at = time.monotonic()
        try:
            if self._session is None:
                self._session = await self.engine.database.connect()
                await self._start_all(await self._recover(self._session), sent_at)
                want = self._want()
            done = await exchange(self._session, self.engine.catalog, self._claimer, reports, want, now=sent_at)
            await self._start_all(done.claimed, sent_at)
        except AWAY as error:
            await self._lose_session(error)
            return False
        del self._reports[: len(reports)]
        for refusal in done.settled.refused:
            log.warning("report refused: task %s attempt %s: %s", refusal.task_id, refusal.attempt, refusal.winner)
        self.completed_count += done.settled.accepted
        self.engine.bell.ring(lanes=done.settled.lanes, done=done.settled.awaited)
        if want:
            self._may_have_work = len(done.claimed) == want
        self._reconnect_seconds = 0.05
        return True

    _reconnect_seconds = 0.05

    async def _lose_session(self, error: Exception) -> None:
        log.warning("database unavailable, retrying: %s", error)
        if self._session is not None:
            self._session.connection.terminate()
            self._session = None
        await asyncio.sleep(self._reconnect_seconds * random.uniform(0.5, 1.5))
        self._reconnect_seconds = min(self._reconnect_seconds * 2, RECONNECT_SECONDS_MAX)

    async def _recover(self, session: Session) -> list[Claimed]:
        """Claims whose answer was lost. Not what ended here and only waits to be reported, nor what was given up."""
        now = time.monotonic()
        self._given_up = {token: until for token, until in self._given_up.items() if until > now}
        known = [held.claimed.lease_token for held in self._held.values()]
        known += [report.lease_token for report in self._reports]
        known += self._given_up
        return await held_by(session, self.worker_id, known, lease_seconds=self._settings.lease_seconds)

    async def _start_all(self, claimed: Sequence[Claimed], sent_at: float) -> None:
        if not claimed:
            return
        catalog = self.engine.catalog
        if not all(catalog.knows(one.lane_id, one.policy_id) for one in claimed):
            await catalog.learn({one.lane_id for one in claimed}, {one.policy_id for one in claimed})
        entries = [self._hold(one, sent_at) for one in claimed]
        is_first = not self._held
        self._held.update((entry.claimed.task_id, entry) for entry in entries)
        if is_first:
            self._show_kill_at()
        # Published first, then a look at the clock: whoever froze in between is killed, or finds itself too late here.
        if self._is_stopping or time.monotonic() >= entries[0].fence_at:
            self._interrupt(entries, INTERRUPTED)
        self._attempts.start(entries)

    def _show_kill_at(self) -> None:
        """Publish when this process must be dead. One at a time: an older value must never cover a newer one."""
        with self._publishing:
            self._publish(self.worker_id, kill_at(self._held.copy().values()))

    def _hold(self, claimed: Claimed, sent_at: float) -> Held:
        catalog = self.engine.catalog
        lane = catalog.lane(claimed.lane_id)
        policy = catalog.policy(claimed.policy_id)
        return Held(claimed, self.actions[lane.action], lane, policy, self._settings.lease_seconds, sent_at)

    async def _attempt(self, held: Held) -> None:
        """Run one attempt and queue its report."""
        held.is_started = True
        if (timeout := held.policy.timeout_seconds) is not None:
            held.deadline_at = time.monotonic() + timeout + self._settings.cancel_grace_seconds
        outcome: Outcome
        if held.verdict is not None:
            outcome = Canceled() if held.verdict == CANCELED else Released()
        elif held.action.isolation is Isolation.PROCESS:
            assert self._isolator is not None
            outcome = await self._isolator.run(self._runner.context(held), held)
        else:
            outcome = await self._runner.run(held)
        if self._held.pop(held.claimed.task_id, None) is not None:
            if held.verdict == FENCED:
                # It has no right to report, nor to run again under the same lease: the reaper decides.
                self._given_up[held.claimed.lease_token] = time.monotonic() + self._settings.lease_seconds
            else:
                self._reports.append(report_of(held.claimed, outcome))
        self._signal.set()

    def _on_ring(self, _lanes: Sequence[int]) -> None:
        self._claimer.forget()
        self._may_have_work = True
        self._signal.set()

    def _take_note(self, claimed: Claimed, kind: str, detail: dict[str, Any]) -> None:
        self._notes.append((claimed, kind, detail))

    def _health(self) -> str:
        return json.dumps({"running": len(self._held), "slots": self.slots, "pid": os.getpid()})

    def on_beat(self, beat: Beat) -> None:
        self._loop.call_soon_threadsafe(self._hear_beat, beat)

    def _hear_beat(self, beat: Beat) -> None:
        self._interrupt((self._held[one] for one in beat.lost if one in self._held), FENCED)
        self._interrupt((self._held[one] for one in beat.canceled if one in self._held), CANCELED)
        self._is_draining = beat.worker_state != "active"
        if beat.worker_state is None and not self._is_stopping:
            log.error("this worker is no longer known to the database; leaving")
            self.stop()
        self._signal.set()

    def on_fence(self, entries: list[Held]) -> None:
        self._loop.call_soon_threadsafe(self._interrupt, entries, FENCED)

    def on_overdue(self) -> Sequence[Report] | None:
        """What can be handed back before the process ends: ended attempts, and those that never began.

        Called from the heart's thread. An attempt looks at its verdict after it said that it started, and here it is
        the other way round, so one of the two sees the other.
        """
        if self._exit_process is None:
            return None
        entries = list(self._held.copy().values())
        for held in entries:
            held.verdict = held.verdict or INTERRUPTED
        unstarted = [report_of(held.claimed, Released()) for held in entries if not held.is_started]
        return [*self._reports, *unstarted]

    def on_end(self) -> None:
        assert self._exit_process is not None
        log.error("an attempt did not stop in time; ending this process")
        self._exit_process()

    def _interrupt(self, entries: Any, verdict: str) -> None:
        for held in list(entries):
            if held.verdict is None:
                held.verdict = verdict
                if held.stop is not None:
                    held.stop.set()
                if held.task is not None:
                    held.task.cancel()

    async def _wind_down(self) -> None:
        """Let attempts finish within the shutdown time, then interrupt the rest; report everything."""
        await self._settle_all()
        self._interrupt(self._held.values(), INTERRUPTED)
        self._finish_by = time.monotonic() + min(self._settings.lease_seconds, INTERRUPT_SECONDS_MAX)
        await self._settle_all()

    async def _settle_all(self) -> None:
        """Report until nothing is held, or the time to finish is over; a second stop may shorten it meanwhile."""
        while (self._held or self._reports) and time.monotonic() < self._finish_by:
            if self._reports:
                await self._exchange(0)
            else:
                await self._wait(self._finish_by - time.monotonic())

    async def _leave(self) -> None:
        self._show_kill_at()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._isolator is not None:
            await self._isolator.close()
        try:
            if not self._held:
                await self.engine.database.fetch(_RETIRE, self.worker_id)
        except HoldfastError as error:
            log.warning("could not sign off: %s", error)
        if self._session is not None:
            await self._session.close()
        await self.engine.bell.flush()
