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
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from holdfast.action import Action
from holdfast.core.hints import Reader
from holdfast.dispatcher.claim import Claimer, WorkerIdentity, held_by
from holdfast.dispatcher.declare import declare_flows
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.exchange import exchange, warm
from holdfast.dispatcher.follow import follow_up
from holdfast.dispatcher.guard import Guards, declare_guards
from holdfast.dispatcher.heartbeat import Beat
from holdfast.dispatcher.inputs import with_inputs
from holdfast.dispatcher.leases import Report, Settled
from holdfast.dispatcher.probe import LABEL as PROBE_LABEL
from holdfast.dispatcher.release import News
from holdfast.errors import HoldfastError
from holdfast.flow.flow import Flow
from holdfast.schedule import Schedule
from holdfast.store.database import TROUBLE, Session
from holdfast.store.statements import sql
from holdfast.wake.bell import WAKE_CHANNEL
from holdfast.wake.carriers import addresses_of, is_external, open_transport
from holdfast.wake.consumer import Consumer
from holdfast.wake.listener import Listener
from holdfast.worker.declare import declare_schedules
from holdfast.worker.execute import CANCELED, FENCED, INTERRUPTED, Isolator
from holdfast.worker.heart import Heart
from holdfast.worker.held import FOREVER, Held, Rules
from holdfast.worker.hold import Hold
from holdfast.worker.notes import Notes
from holdfast.worker.writing import Datasets

_REGISTER = sql("register_worker")
_RETIRE = sql("retire_worker")

log = logging.getLogger("holdfast.worker")

RECONNECT_SECONDS_FIRST = 0.05
RECONNECT_SECONDS_MAX = 5.0
INTERRUPT_SECONDS_MAX = 5.0
RUNNERS = 2
SECOND_WAVE_SECONDS = 0.005


class Worker:
    """One incarnation in one process. `run()` until `stop()`."""

    def __init__(
        self,
        engine: Engine,
        actions: Mapping[str, Action[..., Any]],
        *,
        flows: Mapping[str, Flow[...]] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
        name: str = "",
        version: str = "",
        schedules: Iterable[Schedule] = (),
        origin: str = "",
        isolator: Isolator | None = None,
        datasets: Datasets | None = None,
        rules: Rules | None = None,
        publish: Callable[[int, float], None] | None = None,
        exit_process: Callable[[], None] | None = None,
        runs_launched: bool = False,
    ) -> None:
        settings = engine.settings.worker
        self.engine = engine
        self.actions = dict(actions)
        self.flows = dict(flows or {})
        self.worker_id = 0
        self.queues = None if queues is None else list(queues)
        self.slots = slots or settings.slots
        self.name = name or f"{platform.node()}:{os.getpid()}"
        self.version = version
        self._schedules = tuple(schedules)
        self._origin = origin
        self._settings = settings
        self._exit_process = exit_process
        self._runs_launched = runs_launched
        self._notes = Notes()
        self._has_notes_due = False
        self._signal = asyncio.Event()
        self._hold = Hold(
            engine,
            self.actions,
            slots=self.slots,
            isolator=isolator,
            notes=self._notes,
            datasets=datasets or {},
            announce=self._announce,
            publish=lambda kill_at: publish(self.worker_id, kill_at) if publish is not None else None,
            changed=self._signal,
            rules=rules,
        )
        self._may_have_work = True
        self._is_stopping = False
        self._finish_by = FOREVER
        self._is_draining = False
        self._crew, self._rank = 1, 0
        self._session: Session | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
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
        return not self._hold.entries

    async def run(self) -> None:
        """Work until stopped."""
        async with self.signed_on():
            await self._work()
            await self._wind_down()

    @asynccontextmanager
    async def signed_on(self) -> AsyncIterator[None]:
        """Be known, and keep leases. On the way out nothing stays claimed that could be handed back."""
        self._loop = asyncio.get_running_loop()
        await self._register()
        ears = self._ears()
        heart = Heart(
            self.engine.database,
            self.worker_id,
            self._hold.entries,
            self,
            lease_seconds=self._settings.lease_seconds,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            publish=self._hold.show_kill_at,
            health=self._health,
            catalog=self.engine.catalog,
        )
        for ear in ears:
            await ear.start()
        heart.start()
        self.ready.set()
        try:
            yield
        finally:
            heart.close()
            for ear in ears:
                await ear.close()
            await self._leave()

    def _ears(self) -> list[Listener] | list[Consumer]:
        """What hears of new work: a connection to PostgreSQL, or the carrier that the settings name."""
        wake, database = self.engine.settings.wake, self.engine.database
        if not is_external(wake):
            return [Listener(database, WAKE_CHANNEL, self._on_ring)]
        reader = Reader(worker_id=self.worker_id, actions=frozenset(self.actions), queues=self.queues)
        return [
            Consumer(
                open_transport(wake, address),
                database,
                reader,
                look=self._look,
                free=self._want,
                visibility_seconds=wake.visibility_seconds,
            )
            for address in addresses_of(wake, self.queues)
        ]

    async def _register(self) -> None:
        defaults = self.engine.default_policy
        flows = {name: flow.definition for name, flow in self.flows.items()}
        for action in self.actions.values():
            await self.engine.catalog.declare(
                self.engine.tenant_id,
                action.name,
                action.queue,
                action.policy(defaults),
                self.version,
                launcher=action.launcher,
            )
        guards = {one.name: Guards(breaker=one.breaker, quota=one.quota) for one in self.actions.values()}
        await declare_guards(self.engine, self.engine.tenant_id, guards)
        rules = {name: action.rules(defaults) for name, action in self.actions.items()}
        await declare_flows(self.engine.catalog, self.engine.tenant_id, flows, rules)
        await declare_schedules(self.engine, self._origin, self._schedules, self.actions)
        await self._hold.declared.declare()
        probe_url = self.engine.settings.worker.probe_url
        labels = "{}" if probe_url is None else json.dumps({PROBE_LABEL: probe_url})
        row = await self.engine.database.fetchrow(
            _REGISTER,
            self.name,
            self.version,
            self.queues,
            self._pulled(),
            self.slots,
            labels,
            self.engine.tenant_id,
        )
        self.worker_id = row["worker_id"]
        self._hold.show_kill_at()
        identity = WorkerIdentity(
            worker_id=self.worker_id,
            actions=self._pulled(),
            queues=self.queues,
            lease_seconds=self._settings.lease_seconds,
        )
        self._claimer = Claimer(identity)

    def _pulled(self) -> list[str]:
        """The actions whose tasks this worker takes: the others have workers launched for them."""
        return sorted(one.name for one in self.actions.values() if one.launcher is None or self._runs_launched)

    async def _work(self) -> None:
        poll_at = 0.0
        while not self._is_stopping:
            now = time.monotonic()
            if now >= poll_at:
                self._may_have_work = True
            want = self._want()
            if self._hold.reports or self._has_notes_due or (want and self._may_have_work):
                if not await self._exchange(want):
                    continue
                poll_at = time.monotonic() + self._settings.poll_seconds * random.uniform(0.75, 1.25)
                if self._may_have_work and self._want():
                    continue
            await self._wait(poll_at - time.monotonic() if self._want() else FOREVER)

    def _want(self) -> int:
        return 0 if self._is_draining or self._is_stopping else self.slots - self._hold.count

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
        reports = self._hold.next_batch()
        sent_at = time.monotonic()
        try:
            if self._session is None:
                self._session = await self.engine.database.connect()
                await warm(self._session)
                found = await held_by(self._session, self._claimer.identity, self._hold.known())
                recovered = await with_inputs(self._session, self.engine.catalog, found)
                await self._hold.start(recovered, sent_at, is_stopping=self._is_stopping)
                want = self._want()
            if self._notes:
                await self._notes.store(self._session)
            self._has_notes_due = False
            done = await exchange(
                self._session,
                self.engine.catalog,
                self._claimer,
                reports,
                want,
                now=sent_at,
                start=partial(self._hold.start, sent_at=sent_at, is_stopping=self._is_stopping),
            )
            await self._hold.start(done.claimed, sent_at, is_stopping=self._is_stopping)
        except TROUBLE as error:
            await self._lose_session(error)
            return False
        del self._hold.reports[: len(reports)]
        self._announce(done.settled)
        if want:
            self._may_have_work = self._claimer.may_have_more
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
        return True

    def _announce(self, settled: Settled) -> None:
        for refusal in settled.refused:
            log.warning("report refused: task %s attempt %s: %s", refusal.task_id, refusal.attempt, refusal.winner)
        self.completed_count += settled.accepted
        news = settled.news
        self.engine.bell.ring(lanes=news.lanes, done=news.awaited)
        if news.children or news.has_waits:
            self._follow(news)

    def _follow(self, news: News) -> None:
        """See to what follows beside the work; the repair loops do it too, a moment later."""
        following = asyncio.create_task(self._follow_up(news), name="holdfast-follow-up")
        self._following.add(following)
        following.add_done_callback(self._following.discard)

    async def _follow_up(self, news: News) -> None:
        try:
            await follow_up(self.engine, news)
        except TROUBLE as error:
            log.warning("could not follow up on ended runs, the repair loops will: %s", error)

    async def _lose_session(self, error: Exception) -> None:
        log.warning("database unavailable, retrying: %s", str(error) or type(error).__name__)
        if self._session is not None:
            self._session.connection.terminate()
            self._session = None
        await asyncio.sleep(self._reconnect_seconds * random.uniform(0.5, 1.5))
        longest = min(RECONNECT_SECONDS_MAX, self._settings.lease_seconds / 4)
        self._reconnect_seconds = min(self._reconnect_seconds * 2, longest)

    def _on_ring(self, turn: int, lanes: Sequence[int]) -> None:
        """Look for work: at once when it is this worker's turn, a moment later otherwise.

        Everybody hears the bell. A crowd that runs for one task keeps the one that gets it from starting; the turn that
        the bell calls out lets the same two run first, whoever of them is free.
        """
        if (self._rank - turn) % self._crew < RUNNERS:
            self._look(lanes)
        else:
            self._loop.call_later(SECOND_WAVE_SECONDS, self._look, lanes)

    def _look(self, lanes: Sequence[int]) -> None:
        self._claimer.expect(lanes, now=time.monotonic())
        self._may_have_work = True
        self._signal.set()

    def _health(self) -> str:
        return json.dumps({"running": len(self._hold.entries), "slots": self.slots, "pid": os.getpid()})

    def on_beat(self, beat: Beat, asked: Mapping[int, Held]) -> None:
        self._loop.call_soon_threadsafe(self._hear_beat, beat, asked)

    def _hear_beat(self, beat: Beat, asked: Mapping[int, Held]) -> None:
        """`asked` are the attempts the answer is about: the next one of a task may run here by now."""
        self._hold.interrupt((asked[one] for one in beat.lost if self._hold.entries.get(one) is asked[one]), FENCED)
        self._hold.interrupt(
            (asked[one] for one in beat.canceled if self._hold.entries.get(one) is asked[one]), CANCELED
        )
        self._is_draining = beat.worker_state != "active"
        self._crew, self._rank = max(1, beat.crew), beat.rank
        self._has_notes_due = bool(self._notes)
        if beat.worker_state is None and not self._is_stopping:
            log.error("this worker is no longer known to the database; leaving")
            self.stop()
        self._signal.set()

    def on_fence(self, entries: list[Held]) -> None:
        self._loop.call_soon_threadsafe(self._hold.interrupt, entries, FENCED)

    def on_overdue(self) -> Sequence[Report] | None:
        """What to hand back before the process ends, if it may."""
        return None if self._exit_process is None else self._hold.hand_back()

    def on_heart_stopped(self) -> None:
        log.critical("the heart of this worker stopped; leaving")
        if self._exit_process is not None:
            self._exit_process()
        self._loop.call_soon_threadsafe(self._hold.interrupt, self._hold.snapshot(), FENCED)
        self._loop.call_soon_threadsafe(self.stop)

    def on_end(self) -> None:
        assert self._exit_process is not None
        log.error("an attempt did not stop in time; ending this process")
        self._exit_process()

    async def _wind_down(self) -> None:
        """Let attempts finish within the shutdown time, then interrupt the rest; report everything."""
        await self._settle_all()
        self._hold.interrupt(self._hold.entries.values(), INTERRUPTED)
        self._finish_by = time.monotonic() + min(self._settings.lease_seconds, INTERRUPT_SECONDS_MAX)
        await self._settle_all()

    async def _settle_all(self) -> None:
        """Report until nothing is held, or the time to finish is over; a second stop may shorten it meanwhile."""
        while (self._hold.count or self._hold.reports) and time.monotonic() < self._finish_by:
            if self._hold.reports or self._has_notes_due:
                await self._exchange(0)
            else:
                await self._wait(self._finish_by - time.monotonic())

    async def _leave(self) -> None:
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._hold.close()
        try:
            if not self._hold.entries:
                await self.engine.database.fetch(_RETIRE, self.worker_id)
        except HoldfastError as error:
            log.warning("could not sign off: %s", error)
        if self._session is not None:
            await self._session.close()
        await self.engine.bell.flush()
