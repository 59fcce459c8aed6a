"""The worker: claims what it can run, runs it, reports in batches, and gives back what it cannot finish.

One exchange is under way at a time, or a few where the line is long; what ends meanwhile goes with the next. What calls
for one is the occasion's to know. A lost dispatcher stops nothing by itself: reports wait, the heart decides when work
must stop, and the loop reconnects and goes on. Whether the line to it is a database session or HTTP is not known here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.action import Action
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.heartbeat import Beat
from holdfast.dispatcher.leases import Report, Settled
from holdfast.flow.flow import Flow
from holdfast.schedule import Schedule
from holdfast.store.database import TROUBLE
from holdfast.worker.direct import DirectLine
from holdfast.worker.execute import CANCELED, FENCED, INTERRUPTED, Isolator
from holdfast.worker.heart import Heart
from holdfast.worker.held import FOREVER, Held, Rules
from holdfast.worker.hold import BATCH_SHARED_MIN, Hold
from holdfast.worker.line import Line, Listening, Signing
from holdfast.worker.notes import Notes
from holdfast.worker.occasion import Occasion
from holdfast.worker.writing import Datasets

log = logging.getLogger("holdfast.worker")

RECONNECT_SECONDS_FIRST = 0.05
RECONNECT_SECONDS_MAX = 5.0
INTERRUPT_SECONDS_MAX = 5.0
RUNNERS = 2
SECOND_WAVE_SECONDS = 0.005


def share_of(slots: int, flights: int) -> int:
    """What one exchange may ask for: the flights share the slots, but do not carry a handful each."""
    return max(-(-slots // flights), min(-(-slots // 2), BATCH_SHARED_MIN))


class Worker:
    """One incarnation in one process. `run()` until `stop()`.

    An engine stands for a direct line on it.
    """

    def __init__(
        self,
        line: Engine | Line,
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
        self.line = DirectLine(line) if isinstance(line, Engine) else line
        settings = self.line.settings.worker
        self.actions = dict(actions)
        self.flows: Mapping[str, Flow[...]] = flows or {}
        self.worker_id = 0
        self.queues = None if queues is None else list(queues)
        self.slots = slots or settings.slots
        self._share = share_of(self.slots, self.line.flights)
        self.name = name or f"{platform.node()}:{os.getpid()}"
        self.version = version
        self._schedules = tuple(schedules)
        self._origin = origin
        self._settings = settings
        self._exit_process = exit_process
        self._runs_launched = runs_launched
        self._notes = Notes()
        self._occasion = Occasion(self.line.flights)
        self._hold = Hold(
            self.line,
            self.actions,
            slots=self.slots,
            share=self._share,
            isolator=isolator,
            notes=self._notes,
            datasets=datasets or {},
            announce=self._announce,
            publish=lambda kill_at: publish(self.worker_id, kill_at) if publish is not None else None,
            changed=self._occasion.wake,
            rules=rules,
        )
        self._asked = 0
        self._beside = 0
        self._none_beside = asyncio.Event()
        self._none_beside.set()
        self._is_stopping = False
        self._finish_by = FOREVER
        self._is_draining = False
        self.is_drained = False
        """It left because it was asked to drain, and held nothing any more."""
        self._crew, self._rank = 1, 0
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
        self.ready = asyncio.Event()
        self.completed_count = 0

    def stop(self, *, within_seconds: float | None = None) -> None:
        """Take no more work; finish what runs, within the shutdown time or less, and leave."""
        self._is_stopping = True
        seconds = self._settings.shutdown_seconds if within_seconds is None else within_seconds
        self._finish_by = min(self._finish_by, time.monotonic() + seconds)
        self._occasion.wake()

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
        heart = Heart(
            self.line.pulse(),
            self._hold.entries,
            self._hold.ended,
            self,
            lease_seconds=self._settings.lease_seconds,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            publish=self._hold.show_kill_at,
            health=self._health,
        )
        heart.start()
        self.ready.set()
        try:
            yield
        finally:
            heart.close()
            await self._leave()

    async def _register(self) -> None:
        signed = await self.line.sign_on(
            Signing(
                name=self.name,
                version=self.version,
                actions=self.actions,
                pulled=self._pulled(),
                flows=self.flows,
                queues=self.queues,
                slots=self.slots,
                schedules=self._schedules,
                origin=self._origin,
            ),
            Listening(ring=self._on_ring, look=self._look, free=self._want),
        )
        # The pace is the dispatcher's: a worker elsewhere may have been told another.
        self._settings = self._hold.settings = replace(
            self._settings, lease_seconds=signed.lease_seconds, heartbeat_seconds=signed.heartbeat_seconds
        )
        self.worker_id = signed.worker_id
        self._hold.show_kill_at()

    def _pulled(self) -> list[str]:
        """The actions whose tasks this worker takes: the others have workers launched for them."""
        return sorted(one.name for one in self.actions.values() if one.launcher is None or self._runs_launched)

    async def _work(self) -> None:
        """Exchange until stopped. A flight that fails for a reason that time does not mend ends the others too."""
        beside = [self._exchange_beside(flight) for flight in range(1, self.line.flights)]
        flights = [asyncio.create_task(one, name="holdfast-flight") for one in (self._exchange_first(), *beside)]
        try:
            await asyncio.gather(*flights)
        finally:
            for flight in flights:
                flight.cancel()
            await asyncio.gather(*flights, return_exceptions=True)

    async def _exchange_first(self) -> None:
        """The flight that is always there: it polls, carries the notes, mends the line, and ends a drain."""
        occasion, poll_at = self._occasion, 0.0
        while not self._is_stopping:
            if time.monotonic() >= poll_at:
                occasion.ring()
            want = self._want()
            if self._is_called_for(want):
                if not await self._exchange(want):
                    continue
                poll_at = time.monotonic() + self.line.poll_seconds * random.uniform(0.75, 1.25)
                if occasion.may_have_work and self._want():
                    # What was claimed starts now; what ends at once is reported with the next look, not behind it.
                    await asyncio.sleep(0)
                    continue
            if self._is_draining and self._hold.is_empty:
                log.info("drained: nothing is left to do here; leaving")
                self.is_drained = self._is_stopping = True
                occasion.wake()
                return
            if self._want():
                self.line.stand_by()
            await self._wait(poll_at - time.monotonic() if self._want() else FOREVER)

    def _is_called_for(self, want: int) -> bool:
        """Whether the first flight has something to say, to ask, or to make good."""
        occasion = self._occasion
        has_to_say = bool(self._hold.reports) or occasion.has_notes_due
        return has_to_say or not occasion.is_line_up or (want > 0 and occasion.may_have_work)

    async def _exchange_beside(self, flight: int) -> None:
        """Exchange beside the first flight while there is much to say or to ask: over a long way, all save waiting."""
        while not self._is_stopping:
            if not self._is_worth_another():
                await self._occasion.wait(FOREVER, flight)
                continue
            with self._beside_the_first():
                try:
                    await self._exchange_once(self._want())
                except TROUBLE as error:
                    # What it carried goes with the first flight, which mends the line.
                    log.warning("dispatcher unavailable: %s", str(error) or type(error).__name__)
                    self._occasion.lose_line()
            # It may have been the last thing that a drain waits for, or have left slots that nobody asks for.
            self._occasion.wake()

    @contextmanager
    def _beside_the_first(self) -> Iterator[None]:
        """An exchange beside the first is under way: the line is not resumed meanwhile."""
        self._beside += 1
        self._none_beside.clear()
        try:
            yield
        finally:
            self._beside -= 1
            if not self._beside:
                self._none_beside.set()

    def _is_worth_another(self) -> bool:
        much = max(len(self._hold.reports), self._want() if self._occasion.has_plenty else 0)
        return self._occasion.is_line_up and not self._notes and 2 * much >= self._share

    def _want(self) -> int:
        if self._is_draining or self._is_stopping:
            return 0
        return max(0, min(self._share, self.slots - self._hold.count - self._asked))

    async def _wait(self, seconds: float) -> None:
        """Wait for an attempt to end, a wake-up, or the next poll."""
        await self._occasion.wait(seconds)

    async def _exchange(self, want: int) -> bool:
        """The first flight's exchange; False when it failed and was put off. Reports stay until accepted."""
        try:
            if not self._occasion.is_line_up:
                await self._resume()
                want = min(want, self._want())
            # What a beat finds from now on is for the next: these notes may be on their way by then.
            self._occasion.has_notes_due = False
            await self._exchange_once(want, self._notes)
        except TROUBLE as error:
            await self._lose_line(error)
            return False
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
        return True

    async def _exchange_once(self, want: int, notes: Notes | None = None) -> None:
        sent_at, rings = time.monotonic(), self._occasion.rings
        with self._hold.sending() as reports, self._asking(want):
            start = partial(self._hold.start, sent_at=sent_at, is_stopping=self._is_stopping)
            done = await self.line.exchange(reports, want, notes, now=sent_at, start=start)
            await self._hold.start(done.claimed, sent_at, is_stopping=self._is_stopping)
        self._announce(done.settled)
        if want:
            self._occasion.looked(rings, may_have_more=done.may_have_more, has_found=bool(done.claimed))

    async def _resume(self) -> None:
        """Take up what this worker has and never heard of.

        Not beside another exchange: what that is about to bring would be asked for too. Its answer is waited for,
        unless its way is as dead as the first. No other begins before the line is up again.
        """
        giving_up = self._loop.call_later(self._settings.lease_seconds / 4, self.line.drop)
        await self._none_beside.wait()
        giving_up.cancel()
        self.line.drop()
        sent_at = time.monotonic()
        recovered = await self.line.resume(self._hold.known)
        await self._hold.start(recovered or (), sent_at, is_stopping=self._is_stopping)
        self._occasion.is_line_up = True

    @contextmanager
    def _asking(self, want: int) -> Iterator[None]:
        """Slots that are asked for are not free."""
        self._asked += want
        try:
            yield
        finally:
            self._asked -= want

    def _announce(self, settled: Settled) -> None:
        for refusal in settled.refused:
            log.warning("report refused: task %s attempt %s: %s", refusal.task_id, refusal.attempt, refusal.winner)
        self.completed_count += settled.accepted

    async def _lose_line(self, error: Exception) -> None:
        log.warning("dispatcher unavailable, retrying: %s", str(error) or type(error).__name__)
        self._occasion.lose_line()
        self._occasion.has_notes_due = bool(self._notes)
        if self._none_beside.is_set():
            self.line.drop()
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
        self.line.expect(lanes)
        self._occasion.ring()
        self._occasion.wake()

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
        # For good: a drain is no pause, and one that was silent for a while is no less asked to leave.
        self._is_draining = self._is_draining or beat.worker_state != "active"
        self._crew, self._rank = max(1, beat.crew), beat.rank
        self._occasion.has_notes_due = bool(self._notes)
        if beat.worker_state is None and not self._is_stopping:
            log.error("this worker is no longer known to its dispatcher; leaving")
            self.stop()
        self._occasion.wake()

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
        while not self._hold.is_empty and time.monotonic() < self._finish_by:
            if self._hold.reports or self._occasion.has_notes_due:
                await self._exchange(0)
            else:
                await self._wait(self._finish_by - time.monotonic())

    async def _leave(self) -> None:
        await self._hold.close()
        await self.line.sign_off(is_idle=not self._hold.entries)
