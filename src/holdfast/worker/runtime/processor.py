"""Processing of one task per call: claim it, run it, settle it, and return what happened.

Claim, execution and settling are the same as in a worker's loop, but driven by the caller: for scripts, cron and tests.
No other process is needed: a call completes everything that follows from its task, and a call that finds no task runs
the maintenance passes that requeue work and claims again. This module imports nothing from the app, which imports it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

import msgspec

from holdfast._internal.event_loop_thread import EventLoopThread
from holdfast.authoring.action import Action, in_process
from holdfast.core.values import bounds
from holdfast.engine.dispatch_transaction import dispatched_by, not_dispatched
from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.errors import HoldfastError, Invalid, LeaseLost, Unavailable
from holdfast.execution.dataset_writer import Datasets
from holdfast.execution.runner import FENCED, INTERRUPTED
from holdfast.execution.running_attempt import FOREVER, PolicyOverrides
from holdfast.settings.settings import Settings
from holdfast.store.database import ANY_DB_ERROR, is_refusal
from holdfast.store.resolve import resolve_database
from holdfast.store.sql.tasks import results as results_sql
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.transport.database import DatabaseTransport

__all__ = ["PolicyOverrides", "Processed", "Processor", "SyncProcessor"]


log = logging.getLogger("holdfast.worker")

REPORTS_MAX = 10
"""How often a report is retried when the database does not answer."""


class Processed(msgspec.Struct, frozen=True):
    """The result of one call: which task was processed, if any, and whether it will be retried."""

    processed: bool
    task_id: str | None = None
    retried: bool = False


_NOTHING = Processed(processed=False)


class ProcessorApp(Protocol):
    """The attributes of an app that a processor needs."""

    @property
    def settings(self) -> Settings: ...
    @property
    def actions(self) -> Mapping[str, Action[..., Any]]: ...
    @property
    def datasets(self) -> Datasets: ...
    @property
    def version(self) -> str: ...


class Processor:
    """Processes one task per call. Open it with `async with app.processor() as p`."""

    def __init__(
        self,
        app: ProcessorApp,
        *,
        name: str,
        queues: Sequence[str] | None,
        overrides: PolicyOverrides,
        lease_seconds: float | None,
    ) -> None:
        _check(overrides)
        self._app = app
        self._name = bounds.valid_worker_id(name) if name else f"processor:{os.getpid()}"
        self._queues = queues
        self._overrides = overrides
        self._lease_seconds = lease_seconds
        self._stack = AsyncExitStack()
        self._turn = asyncio.Lock()
        self._worker: _SingleStepWorker | None = None

    async def __aenter__(self) -> Processor:
        app, self._turn = self._app, asyncio.Lock()
        location = await asyncio.to_thread(resolve_database, app.settings, None)
        self._stack.callback(location.close)
        try:
            settings = _with_lease(app.settings, self._lease_seconds)
            engine = await self._stack.enter_async_context(
                Engine(location.url, settings, migrates=location.is_embedded)
            )
            options = {"queues": self._queues, "name": self._name, "version": app.version}
            actions = {name: in_process(action) for name, action in app.actions.items()}
            worker = _SingleStepWorker(engine, actions, datasets=app.datasets, overrides=self._overrides, **options)
            await self._stack.enter_async_context(worker.signed_on())
        except BaseException:
            await self._stack.aclose()
            raise
        self._worker = worker
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker = None
        await self._stack.aclose()

    async def process_once(self) -> Processed:
        """Run one task that is due and not claimed by another worker, if there is one.

        Raise `LeaseLost` if another worker got the task before its end was recorded, `Unavailable` if the database
        cannot be reached, and `DispatchFailed` if the database refused to settle, so that nothing changed.
        """
        if self._worker is None:
            raise Invalid("The processor is not open.", code="client_closed", advice="Use `async with`.")
        async with self._turn:
            return await self._worker.process_once()


class _SingleStepWorker(Worker):
    """A worker that claims the next task only when its caller asks. It also runs launched actions itself."""

    def __init__(self, engine: Engine, *arguments: Any, **options: Any) -> None:
        database_transport = DatabaseTransport(engine)
        super().__init__(database_transport, *arguments, slots=1, runs_launched=True, **options)
        self._engine = engine
        self._database_transport = database_transport
        self._loops = Loops(engine)

    async def process_once(self) -> Processed:
        state = self.state
        await self._wait_while(lambda: len(state.commits))
        state.refusals.clear()
        if not await self._claim():
            await self._repair()
            if not await self._claim():
                return _NOTHING
        [attempt] = state.running.values()
        task_id = attempt.claimed.task_id
        try:
            await self._wait_while(lambda: state.slots_taken)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up())
            raise
        was_fenced = not state.reports and attempt.stop_reason == FENCED
        if state.reports or state.notes:
            await self._exchange(0)
        await self._database_transport.propagated()
        winner = {refusal.task_id: refusal.winner for refusal in state.refusals}.get(task_id)
        number = attempt.claimed.attempt
        if was_fenced or winner is not None:
            reason = winner or "its lease ran out"
            raise LeaseLost(f"Attempt {number} of task {task_id} was not settled: {reason}.", task_id=str(task_id))
        decision = await results_sql.attempt_decision(self._engine.database, task_id, number)
        return Processed(processed=True, task_id=str(task_id), retried=decision == "retry")

    async def _wait_while(self, left: Callable[[], int]) -> None:
        """Wait until nothing is left, also of an earlier call.

        Raise `Unavailable` if a commit gets no response for long.
        """
        state = self.state
        unanswered_max = state.commits.unanswered_count + REPORTS_MAX
        while left():
            await state.signal.wait(state.settings.poll_seconds)
            if state.commits.unanswered_count >= unanswered_max:
                raise _unreachable()

    async def _claim(self) -> bool:
        self._database_transport.claimer.forget()
        await self._exchange(1)
        return bool(self.state.running)

    async def _repair(self) -> None:
        """Requeue lost and due work, and propagate ended child runs. On failure, other processes' loops do it later."""
        try:
            await self._loops.reap()
            await self._loops.reconcile()
            await self._loops.runs()
        except ANY_DB_ERROR as error:
            log.warning("could not look for lost and due work: %s", error)

    async def _exchange(self, want: int) -> None:
        """Exchange until the database answers, at most `REPORTS_MAX` times."""
        for _ in range(REPORTS_MAX):
            if await self.exchange_loop.exchange(want):
                return
            if is_refusal(self.exchange_loop.last_error):
                break
        raise self._not_settled() or _unreachable()

    def _not_settled(self) -> HoldfastError | None:
        """Return the error for a settling transaction that the database refused, with what it was to dispatch.

        The report stays queued and goes with the next call. If no call follows, the lease expires.
        """
        error, reports = self.exchange_loop.last_error, self.state.reports
        if error is None or not is_refusal(error) or not reports:
            return None
        report = reports[0]
        code = dispatched_by(report, report.policy or self._engine.catalog.policy(report.policy_id))
        what = f"Settling attempt {report.attempt} of task {report.task_id}"
        return None if code is None else not_dispatched(code, what, error)

    async def _give_up(self) -> None:
        """Interrupt the attempt of a cancelled call, and report it."""
        state = self.state
        state.interrupt(state.running.values(), INTERRUPTED)
        state.finish_by = time.monotonic() + state.settings.lease_seconds
        await self._settle_all()
        state.finish_by = FOREVER


class SyncProcessor:
    """The blocking form of `Processor`. Open it with `with app.sync_processor() as p`."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        advice = "Use `with app.sync_processor() as p:`, in the process that works with it."
        self._loop = EventLoopThread("processor", processor, advice=advice)

    def __enter__(self) -> SyncProcessor:
        self._loop.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.leave(kind, error, trace)

    def process_once(self) -> Processed:
        return self._loop.run(self._processor.process_once())


def _unreachable() -> Unavailable:
    return Unavailable(
        "The database does not answer.", code="database_unreachable", advice="Try again; the task is not lost."
    )


def _with_lease(settings: Settings, lease_seconds: float | None) -> Settings:
    if lease_seconds is None:
        return settings
    worker = settings.worker
    beat = min(worker.heartbeat_seconds, lease_seconds / 3)
    return replace(settings, worker=replace(worker, lease_seconds=lease_seconds, heartbeat_seconds=beat))


def _check(overrides: PolicyOverrides) -> None:
    if overrides.max_attempts is not None and overrides.max_attempts < 1:
        raise Invalid("max_attempts must be at least 1.", code="invalid_policy")
    if overrides.default_timeout_seconds is not None and overrides.default_timeout_seconds <= 0:
        raise Invalid("default_timeout_seconds must be more than 0.", code="invalid_policy")
