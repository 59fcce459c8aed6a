"""The worker: claims tasks, runs them, reports in batches, and releases what it cannot finish.

A lost connection to the engine stops no work by itself: reports wait, the heartbeat thread decides when attempts must
stop, and the exchange loop reconnects. The worker does not know whether its transport is a database session or HTTP.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from holdfast.authoring.action import Action
from holdfast.authoring.flow.flow import Flow
from holdfast.authoring.schedule import Schedule
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Report, Settled
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.execution.dataset_writer import Datasets
from holdfast.execution.notes import Notes
from holdfast.execution.runner import CANCELED, FENCED, INTERRUPTED, Isolator
from holdfast.execution.running_attempt import FOREVER, PolicyOverrides, RunningAttempt
from holdfast.worker.runtime.exchange_loop import ExchangeLoop, share_of
from holdfast.worker.runtime.heartbeat_thread import HeartbeatThread
from holdfast.worker.runtime.running_attempts import RunningAttempts
from holdfast.worker.runtime.work_signal import WorkSignal
from holdfast.worker.transport.contract import SignOn, Transport, WorkerCallbacks
from holdfast.worker.transport.database import DatabaseTransport

log = logging.getLogger("holdfast.worker")

INTERRUPT_SECONDS_MAX = 5.0
RUNNERS = 2
SECOND_WAVE_SECONDS = 0.005


class Worker:
    """One registration of a worker in one process. `run()` works until `stop()`.

    An `Engine` passed as transport is wrapped in a `DatabaseTransport`.
    """

    def __init__(
        self,
        transport: Engine | Transport,
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
        rules: PolicyOverrides | None = None,
        publish: Callable[[int, float], None] | None = None,
        exit_process: Callable[[], None] | None = None,
        runs_launched: bool = False,
    ) -> None:
        self.transport = DatabaseTransport(transport) if isinstance(transport, Engine) else transport
        self.actions = dict(actions)
        self.flows: Mapping[str, Flow[...]] = flows or {}
        self.worker_id = 0
        self.queues = None if queues is None else list(queues)
        self.slots = slots or self.transport.settings.worker.slots
        self.name = name or f"{platform.node()}:{os.getpid()}"
        self.version = version
        self._schedules = tuple(schedules)
        self._origin = origin
        self._exit_process = exit_process
        self._runs_launched = runs_launched
        self._notes = Notes()
        self._work_signal = WorkSignal(self.transport.concurrent_exchanges)
        self._attempts = RunningAttempts(
            self.transport,
            self.actions,
            slots=self.slots,
            share=share_of(self.slots, self.transport.concurrent_exchanges),
            isolator=isolator,
            notes=self._notes,
            datasets=datasets or {},
            announce=self._announce,
            publish=lambda kill_at: publish(self.worker_id, kill_at) if publish is not None else None,
            changed=self._work_signal.wake,
            rules=rules,
        )
        self._concurrent_exchanges = ExchangeLoop(
            self.transport, self._attempts, self._work_signal, self._notes, slots=self.slots, announce=self._announce
        )
        self._heartbeat_thread: HeartbeatThread | None = None
        self._finish_by = FOREVER
        self._crew, self._rank = 1, 0
        self.ready = asyncio.Event()
        self.on_ready: Callable[[], None] = lambda: None
        self.completed_count = 0

    def stop(self, *, within_seconds: float | None = None) -> None:
        """Claim no more tasks, finish running attempts within the shutdown time or `within_seconds`, and sign off."""
        self._concurrent_exchanges.is_stopping = True
        seconds = self._attempts.settings.shutdown_seconds if within_seconds is None else within_seconds
        self._finish_by = min(self._finish_by, time.monotonic() + seconds)
        self._work_signal.wake()

    @property
    def is_drained(self) -> bool:
        """Whether the worker ended because it was asked to drain and had nothing left to run or report."""
        return self._concurrent_exchanges.is_drained

    @property
    def begun_count(self) -> int:
        """How many attempts this worker has started."""
        return self._attempts.begun_count

    @property
    def is_idle(self) -> bool:
        """Whether no attempt runs. After `run`, a thread that cannot be stopped may still run one."""
        return not self._attempts.entries

    async def run(self) -> None:
        """Work until stopped."""
        async with self.signed_on():
            await self._concurrent_exchanges.run()
            await self._wind_down()

    @asynccontextmanager
    async def signed_on(self) -> AsyncIterator[None]:
        """Register the worker and renew its leases. On exit, release every task that can be released."""
        self._loop = asyncio.get_running_loop()
        await self._register()
        heartbeat_thread = self._heartbeat_thread = HeartbeatThread(
            self.transport.pulse(),
            self._attempts.entries,
            self._attempts.ended,
            self,
            lease_seconds=self._attempts.settings.lease_seconds,
            heartbeat_seconds=self._attempts.settings.heartbeat_seconds,
            publish=self._attempts.show_kill_at,
            health=self._health,
            outage=self.transport.outage,
        )
        heartbeat_thread.start()
        self.ready.set()
        self.on_ready()
        try:
            yield
        finally:
            heartbeat_thread.close()
            await self._leave()

    async def _register(self) -> None:
        signed = await self.transport.sign_on(
            SignOn(
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
            WorkerCallbacks(
                notify=self._on_notification,
                look=self._look,
                free=self._concurrent_exchanges.want,
                beat=self._beat_soon,
            ),
        )
        # The engine decides lease and heartbeat times: a server may use others than this worker's settings.
        self._attempts.settings = replace(
            self._attempts.settings, lease_seconds=signed.lease_seconds, heartbeat_seconds=signed.heartbeat_seconds
        )
        self.worker_id = signed.worker_id
        self._attempts.show_kill_at()

    def _pulled(self) -> list[str]:
        """Return the actions whose tasks this worker claims. Actions with a launcher get workers launched for them."""
        return sorted(one.name for one in self.actions.values() if one.launcher is None or self._runs_launched)

    def _announce(self, settled: Settled) -> None:
        for refusal in settled.refused:
            log.warning("report refused: task %s attempt %s: %s", refusal.task_id, refusal.attempt, refusal.winner)
        self.completed_count += settled.accepted

    def _on_notification(self, turn: int, lanes: Sequence[int]) -> None:
        """Claim at once if it is this worker's turn, a moment later otherwise.

        Every worker receives the notification. If all of them claimed at once, they would delay the one that gets the
        task. The turn in the notification lets the same `RUNNERS` workers claim first.
        """
        if (self._rank - turn) % self._crew < RUNNERS:
            self._look(lanes)
        else:
            self._loop.call_later(SECOND_WAVE_SECONDS, self._look, lanes)

    def _beat_soon(self) -> None:
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.beat_soon()

    def _look(self, lanes: Sequence[int]) -> None:
        self.transport.expect(lanes)
        self._work_signal.notify()
        self._work_signal.wake()

    def _health(self) -> str:
        return json.dumps({"running": len(self._attempts.entries), "slots": self.slots, "pid": os.getpid()})

    def on_beat(self, beat: Beat, asked: Mapping[int, RunningAttempt]) -> None:
        self._loop.call_soon_threadsafe(self._hear_beat, beat, asked)

    def _hear_beat(self, beat: Beat, asked: Mapping[int, RunningAttempt]) -> None:
        """Apply a heartbeat's response to the attempts in `asked`; a later attempt of a task may run by now."""
        self._attempts.interrupt(
            (asked[one] for one in beat.lost if self._attempts.entries.get(one) is asked[one]), FENCED
        )
        self._attempts.interrupt(
            (asked[one] for one in beat.canceled if self._attempts.entries.get(one) is asked[one]), CANCELED
        )
        # Draining is permanent: it is not undone by a later response.
        self._concurrent_exchanges.is_draining = self._concurrent_exchanges.is_draining or beat.worker_state != "active"
        self._crew, self._rank = max(1, beat.crew), beat.rank
        self._work_signal.has_notes_due = bool(self._notes)
        if beat.worker_state is None and not self._concurrent_exchanges.is_stopping:
            log.error("this worker is no longer registered; leaving")
            self.stop()
        self._work_signal.wake()

    def on_fence(self, entries: list[RunningAttempt]) -> None:
        self._loop.call_soon_threadsafe(self._attempts.interrupt, entries, FENCED)

    def on_overdue(self) -> Sequence[Report] | None:
        """Return the reports to send before the process ends, or None if it may not end."""
        return None if self._exit_process is None else self._attempts.hand_back()

    def on_heartbeats_stopped(self) -> None:
        log.critical("the heartbeat thread of this worker stopped; leaving")
        if self._exit_process is not None:
            self._exit_process()
        self._loop.call_soon_threadsafe(self._attempts.interrupt, self._attempts.snapshot(), FENCED)
        self._loop.call_soon_threadsafe(self.stop)

    def on_end(self) -> None:
        assert self._exit_process is not None
        log.error("an attempt did not stop in time; ending this process")
        self._exit_process()

    async def _wind_down(self) -> None:
        """Let attempts finish within the shutdown time, then interrupt the rest; report everything."""
        await self._settle_all()
        self._attempts.interrupt(self._attempts.entries.values(), INTERRUPTED)
        self._finish_by = time.monotonic() + min(self._attempts.settings.lease_seconds, INTERRUPT_SECONDS_MAX)
        await self._settle_all()

    async def _settle_all(self) -> None:
        """Report until nothing is left or the time to finish is over. A second `stop` may shorten that time."""
        while not self._attempts.is_empty and time.monotonic() < self._finish_by:
            if self._attempts.reports or self._work_signal.has_notes_due:
                await self._concurrent_exchanges.exchange(0)
            else:
                await self._work_signal.wait(self._finish_by - time.monotonic())

    async def _leave(self) -> None:
        await self._attempts.close()
        await self.transport.sign_off(is_idle=not self._attempts.entries)
