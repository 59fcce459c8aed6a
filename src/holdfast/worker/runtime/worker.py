"""The worker: claims tasks, runs them, reports in batches, and releases what it cannot finish.

Its parts:

    Worker            registers, starts the other parts, winds down; its transport notifies it of work
    WorkerState       owns everything the parts share: attempts, unsettled reports, slots, whether the worker stops
    ExchangeLoop      reports and claims in one exchange with the engine, again and again; restores the connection
    HeartbeatThread   renews leases in a thread of its own; makes attempts stop whose lease cannot be renewed
    Transport         how the engine is reached: a database session or HTTP; the worker does not know which

The life of a task here: a notification, a poll or a free slot wakes the exchange loop (`WorkSignal`). The exchange
claims the task, and `WorkerState.start` records it as running and gives it to the attempt pool, which runs it where its
action's isolation says (`Runner`). Meanwhile the heartbeat thread renews its lease, and passes on that the attempt was
canceled or lost its lease. When the attempt ends, `WorkerState` queues its report, the next exchange sends it, and the
response says whether it was accepted. An attempt that wrote to datasets is settled alone instead (`DatasetCommits`).

A lost connection to the engine stops no work by itself: reports wait, the heartbeat thread decides when attempts must
stop, and the exchange loop reconnects.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.authoring.action import Action, Isolation
from holdfast.authoring.flow.flow import Flow
from holdfast.authoring.schedule import Schedule
from holdfast.engine.engine import Engine
from holdfast.engine.workers.probe import LABEL as PROBE_LABEL
from holdfast.errors import Invalid
from holdfast.execution.dataset_writer import Datasets
from holdfast.execution.runner import INTERRUPTED, Isolator
from holdfast.execution.running_attempt import PolicyOverrides
from holdfast.worker.runtime.exchange_loop import ExchangeLoop
from holdfast.worker.runtime.heartbeat_thread import HeartbeatThread
from holdfast.worker.runtime.state import ProcessControl, WorkerState
from holdfast.worker.transport.contract import SignOn, Transport
from holdfast.worker.transport.database import DatabaseTransport

INTERRUPT_SECONDS_MAX = 5.0
FIRST_CLAIMERS = 2
"""How many workers of a kind claim at once after a notification."""
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
        overrides: PolicyOverrides | None = None,
        process: ProcessControl | None = None,
        runs_launched: bool = False,
    ) -> None:
        if isolator is None:
            _refuse_isolated(actions)
        self.transport = DatabaseTransport(transport) if isinstance(transport, Engine) else transport
        self.actions = dict(actions)
        self.flows: Mapping[str, Flow[...]] = flows or {}
        self.queues = None if queues is None else list(queues)
        self.slots = slots or self.transport.settings.worker.slots
        self.name = name or f"{platform.node()}:{os.getpid()}"
        self.version = version
        self._schedules = tuple(schedules)
        self._origin = origin
        self._runs_launched = runs_launched
        self.state = WorkerState(
            self.transport,
            self.actions,
            slots=self.slots,
            isolator=isolator,
            datasets=datasets,
            overrides=overrides,
            process=process,
        )
        self.exchange_loop = ExchangeLoop(self.state)
        self._heartbeat_thread: HeartbeatThread | None = None
        self.ready = asyncio.Event()
        self.on_ready: Callable[[], None] = lambda: None

    def stop(self, *, within_seconds: float | None = None) -> None:
        """Claim no more tasks, finish running attempts within the shutdown time or `within_seconds`, and sign off."""
        self.state.stop(within_seconds)

    @property
    def worker_id(self) -> int:
        """The id of the registration; 0 before there is one."""
        return self.state.worker_id

    @property
    def is_idle(self) -> bool:
        """Whether no attempt runs. After `run`, a thread that cannot be stopped may still run one."""
        return not self.state.running

    async def run(self) -> None:
        """Work until stopped."""
        async with self.signed_on():
            await self.exchange_loop.run()
            await self._wind_down()

    @asynccontextmanager
    async def signed_on(self) -> AsyncIterator[None]:
        """Register the worker and renew its leases. On exit, release every task that can be released."""
        await self._register()
        heartbeat_thread = self._heartbeat_thread = HeartbeatThread(self.state)
        heartbeat_thread.start()
        self.ready.set()
        self.on_ready()
        try:
            yield
        finally:
            heartbeat_thread.close()
            await self.state.close()
            await self.transport.sign_off(is_idle=self.is_idle)

    async def _register(self) -> None:
        probe_url = self.state.settings.probe_url
        declaration = SignOn(
            name=self.name,
            version=self.version,
            actions=self.actions,
            claimed_actions=self._claimed_actions(),
            flows=self.flows,
            queues=self.queues,
            slots=self.slots,
            labels={} if probe_url is None else {PROBE_LABEL: probe_url},
            schedules=self._schedules,
            origin=self._origin,
        )
        self.state.register(await self.transport.sign_on(declaration, self))

    def _claimed_actions(self) -> list[str]:
        """Return the actions whose tasks this worker claims. Actions with a launcher get workers launched for them."""
        return sorted(action.name for action in self.actions.values() if action.launcher is None or self._runs_launched)

    # Called by the transport.

    def on_notification(self, turn: int, lanes: Sequence[int]) -> None:
        """Claim at once if it is this worker's turn, a moment later otherwise.

        Every worker receives the notification. If all of them claimed at once, they would delay the one that gets the
        task. The turn in the notification lets the same `FIRST_CLAIMERS` workers claim first.
        """
        if (self.state.rank - turn) % self.state.peers < FIRST_CLAIMERS:
            self.claim_now(lanes)
        else:
            asyncio.get_running_loop().call_later(SECOND_WAVE_SECONDS, self.claim_now, lanes)

    def claim_now(self, lanes: Sequence[int]) -> None:
        self.transport.expect(lanes)
        self.state.signal.notify_and_wake()

    def claimable_slots(self) -> int:
        return self.state.claimable_slots()

    def request_heartbeat(self) -> None:
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.request()

    def known_leases(self) -> Sequence[tuple[int, Any]]:
        return self.state.known_leases()

    # The end.

    async def _wind_down(self) -> None:
        """Let attempts finish within the shutdown time, then interrupt the rest; report everything."""
        state = self.state
        await self._settle_all()
        state.interrupt(state.running.values(), INTERRUPTED)
        state.finish_by = time.monotonic() + min(state.settings.lease_seconds, INTERRUPT_SECONDS_MAX)
        await self._settle_all()

    async def _settle_all(self) -> None:
        """Report until nothing is left or the time to finish is over. A second `stop` may shorten that time."""
        state = self.state
        while not state.is_empty and time.monotonic() < state.finish_by:
            if state.reports or state.signal.has_notes_due:
                await self.exchange_loop.exchange(0)
            else:
                await state.signal.wait(state.finish_by - time.monotonic())


def _refuse_isolated(actions: Mapping[str, Action[..., Any]]) -> None:
    """Refuse actions with process isolation: only an isolator knows where the child process imports the app from."""
    if isolated := sorted(name for name, action in actions.items() if action.isolation is Isolation.PROCESS):
        raise Invalid(
            f"{', '.join(isolated)} run in a process of their own, which this worker cannot start.",
            code="isolation_needs_app",
            advice="Start workers with `holdfast work module:app`, or pass `isolator=Isolated(orders)`.",
        )
