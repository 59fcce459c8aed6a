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
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.action import Action, Isolation
from holdfast.core.outcome import Canceled, Completed, Outcome, Released
from holdfast.dispatcher.claim import Claimer, WorkerIdentity, held_by
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.exchange import exchange
from holdfast.dispatcher.heartbeat import Beat
from holdfast.dispatcher.leases import Claimed, Report, report_of
from holdfast.errors import HoldfastError, Invalid
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import TROUBLE, Session
from holdfast.store.statements import sql
from holdfast.wake.bell import WAKE_CHANNEL
from holdfast.wake.listener import Listener
from holdfast.worker.attempts import Attempts
from holdfast.worker.execute import CANCELED, FENCED, INTERRUPTED, Isolator, Runner
from holdfast.worker.heart import Heart
from holdfast.worker.held import FOREVER, Held, Plan, kill_at
from holdfast.worker.notes import Notes

_REGISTER = sql("register_worker")
_RETIRE = sql("retire_worker")

log = logging.getLogger("holdfast.worker")

RECONNECT_SECONDS_MAX = 5.0
INTERRUPT_SECONDS_MAX = 5.0
BATCH_MAX = 2_000
BATCH_BYTES_MAX = 64 * 1024 * 1024


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
        if isolator is None:
            _refuse_isolated(actions)
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
        self._given_up: deque[Any] = deque(maxlen=2 * self.slots)
        self._notes = Notes()
        self._has_notes_due = False
        self._signal = asyncio.Event()
        self._may_have_work = True
        self._is_stopping = False
        self._finish_by = FOREVER
        self._is_draining = False
        self._session: Session | None = None
        self._threads = ThreadPoolExecutor(self.slots, "holdfast-action")
        self._isolator = isolator
        self._runner = Runner(
            threads=self._threads,
            isolator=isolator,
            output_bytes_max=engine.settings.limits.output_bytes_max,
            note=self._notes.add,
        )
        self._plans: dict[tuple[int, int], Plan] = {}
        self._attempts = Attempts(self._run, self._ended)
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
        defaults = self.engine.default_policy
        for action in self.actions.values():
            await self.engine.catalog.declare(
                DEFAULT_TENANT_ID, action.name, action.queue, action.policy(defaults), self.version
            )
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
            if self._reports or self._has_notes_due or (want and self._may_have_work):
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
        reports = _batch(self._reports)
        sent_at = time.monotonic()
        try:
            if self._session is None:
                self._session = await self.engine.database.connect()
                recovered = await held_by(self._session, self._claimer.identity, self._known_tokens())
                await self._start_all(recovered, sent_at)
                want = self._want()
            if self._notes:
                await self._notes.store(self._session)
            self._has_notes_due = False
            done = await exchange(self._session, self.engine.catalog, self._claimer, reports, want, now=sent_at)
            await self._start_all(done.claimed, sent_at)
        except TROUBLE as error:
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

    def _known_tokens(self) -> list[Any]:
        """Leases this worker must not take up again: held, ended but not settled, given up."""
        held = [entry.claimed.lease_token for entry in self._held.values()]
        return [*held, *(report.lease_token for report in self._reports), *self._given_up]

    async def _lose_session(self, error: Exception) -> None:
        log.warning("database unavailable, retrying: %s", str(error) or type(error).__name__)
        if self._session is not None:
            self._session.connection.terminate()
            self._session = None
        await asyncio.sleep(self._reconnect_seconds * random.uniform(0.5, 1.5))
        longest = min(RECONNECT_SECONDS_MAX, self._settings.lease_seconds / 4)
        self._reconnect_seconds = min(self._reconnect_seconds * 2, longest)

    async def _start_all(self, claimed: Sequence[Claimed], sent_at: float) -> None:
        if not claimed:
            return
        is_first = not self._held
        # A task whose lost attempt still runs here (a thread that nothing can stop) is left to its lease.
        mine = claimed if is_first else [one for one in claimed if one.task_id not in self._held]
        plans = await self._plans_for(mine)
        lease_seconds = self._settings.lease_seconds
        entries = [Held(one, plans[one.lane_id, one.policy_id], lease_seconds, sent_at) for one in mine]
        if not entries:
            return
        self._held.update({entry.claimed.task_id: entry for entry in entries})
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

    async def _plans_for(self, claimed: Sequence[Claimed]) -> dict[tuple[int, int], Plan]:
        """How to run what was claimed: one plan per lane and policy, made when first met."""
        pairs = {(one.lane_id, one.policy_id) for one in claimed}
        if fresh := [pair for pair in pairs if pair not in self._plans]:
            catalog = self.engine.catalog
            await catalog.learn({lane_id for lane_id, _ in fresh}, {policy_id for _, policy_id in fresh})
            for lane_id, policy_id in fresh:
                lane = catalog.lane(lane_id)
                self._plans[lane_id, policy_id] = Plan(self.actions[lane.action], lane, catalog.policy(policy_id))
        return self._plans

    def _run(self, held: Held) -> Awaitable[Outcome]:
        """Begin one attempt, wherever its code is to run."""
        held.is_started = True
        if held.verdict is not None:
            return _at_once(Canceled() if held.verdict == CANCELED else Released())
        if (timeout := held.plan.policy.timeout_seconds) is not None:
            held.deadline_at = time.monotonic() + timeout + self._settings.cancel_grace_seconds
        if held.plan.action.isolation is Isolation.PROCESS:
            assert self._isolator is not None
            return self._isolator.run(self._runner.context(held), held)
        return self._runner.run(held)

    def _ended(self, held: Held, outcome: Outcome) -> None:
        """Queue the report of one attempt."""
        self._held.pop(held.claimed.task_id, None)
        if held.verdict == FENCED:
            # It has no right to report: whatever it did, the reaper decides.
            self._given_up.append(held.claimed.lease_token)
            self._show_kill_at()
        else:
            self._reports.append(report_of(held.claimed, outcome))
        self._signal.set()

    def _on_ring(self, _lanes: Sequence[int]) -> None:
        self._claimer.forget()
        self._may_have_work = True
        self._signal.set()

    def _health(self) -> str:
        return json.dumps({"running": len(self._held), "slots": self.slots, "pid": os.getpid()})

    def on_beat(self, beat: Beat, asked: Mapping[int, Held]) -> None:
        self._loop.call_soon_threadsafe(self._hear_beat, beat, asked)

    def _hear_beat(self, beat: Beat, asked: Mapping[int, Held]) -> None:
        """`asked` are the attempts the answer is about: the next one of a task may run here by now."""
        self._interrupt((asked[one] for one in beat.lost if self._held.get(one) is asked[one]), FENCED)
        self._interrupt((asked[one] for one in beat.canceled if self._held.get(one) is asked[one]), CANCELED)
        self._is_draining = beat.worker_state != "active"
        self._has_notes_due = bool(self._notes)
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

    def on_heart_stopped(self) -> None:
        log.critical("the heart of this worker stopped; leaving")
        if self._exit_process is not None:
            self._exit_process()
        self._loop.call_soon_threadsafe(self._interrupt, list(self._held.copy().values()), FENCED)
        self._loop.call_soon_threadsafe(self.stop)

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
            if self._reports or self._has_notes_due:
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


def _refuse_isolated(actions: Mapping[str, Action[..., Any]]) -> None:
    """A process of its own has to import the app, so somebody must know where from."""
    if isolated := sorted(name for name, action in actions.items() if action.isolation is Isolation.PROCESS):
        raise Invalid(
            f"{', '.join(isolated)} run in a process of their own, which this worker cannot start.",
            code="isolation_needs_app",
            advice="Start workers with `holdfast work module:app`, or pass `isolator=Isolated(orders)`.",
        )


def _batch(reports: list[Report]) -> list[Report]:
    """The first reports, as many as one statement can carry whatever the outputs; there is always one."""
    bytes_left = BATCH_BYTES_MAX
    for count, report in enumerate(reports[:BATCH_MAX]):
        if type(report.outcome) is Completed:
            bytes_left -= len(report.outcome.output)
            if bytes_left < 0:
                return reports[: max(1, count)]
    return reports[:BATCH_MAX]


async def _at_once(outcome: Outcome) -> Outcome:
    return outcome
