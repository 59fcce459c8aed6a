"""Execution of one claimed attempt to one outcome. Only here are exceptions of user code treated as data.

The action decides where its code runs: as a coroutine on the worker's loop, in a thread, or in a killable process. The
app decides whether an executor wraps it. Cancellation comes from outside, with the reason recorded in the attempt.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from holdfast.authoring.action import Action, Isolation
from holdfast.authoring.context import Context, DatasetWriter
from holdfast.codec import json_codec
from holdfast.core.tasks.failure import LOST_CODE, TIMEOUT_CODE, Failure, input_failure
from holdfast.core.tasks.outcome import (
    STOPPED,
    Canceled,
    Completed,
    Failed,
    Lost,
    Outcome,
    Released,
    TimedOut,
    outcome_of,
)
from holdfast.engine.datasets.stage import AttemptLease
from holdfast.engine.effects.gate import Sender
from holdfast.errors import HoldfastError
from holdfast.execution.attempt_pool import ESCAPES, Escaped, in_own_context
from holdfast.execution.dataset_writer import (
    AsyncWriter,
    AttemptDatasets,
    BlockingWriter,
    DeclaredDatasets,
    here,
    waiting,
)
from holdfast.execution.effect_runner import EffectRunner
from holdfast.execution.effect_store import EffectStore
from holdfast.execution.executor_calls import through_executor
from holdfast.execution.notes import Notes
from holdfast.execution.running_attempt import RunningAttempt
from holdfast.execution.threads import contained, to_the_end

log = logging.getLogger("holdfast.worker")

CANCELED, INTERRUPTED, FENCED = "canceled", "interrupted", "fenced"
OUTPUT_CODE = "DAG_VALIDATION_OUTPUT_INVALID"


class Isolator(Protocol):
    """Runs an attempt in a separate process that can be killed."""

    async def run(self, context: Context, attempt: RunningAttempt) -> Outcome: ...

    async def close(self) -> None: ...


class Runner:
    """Runs attempts of one worker's actions: on the event loop, in `threads`, or in processes of the `isolator`.

    `close` ends both. `cancel_grace_seconds` is how long an attempt past its time limit may take to end before this
    process must.
    """

    def __init__(
        self,
        *,
        threads: Executor,
        isolator: Isolator | None,
        output_bytes_max: int,
        cancel_grace_seconds: float,
        effect_store: EffectStore,
        notes: Notes,
        datasets: DeclaredDatasets,
    ) -> None:
        self._threads = threads
        self._isolator = isolator
        self._output_bytes_max = output_bytes_max
        self._cancel_grace_seconds = cancel_grace_seconds
        self._effect_store = effect_store
        self._notes = notes
        self._datasets = datasets

    def start(self, attempt: RunningAttempt) -> Awaitable[Outcome]:
        """Start one attempt in the event loop, a thread or a process. Await the result for its outcome."""
        attempt.is_started = True
        if attempt.stop_reason is not None:
            return _at_once(Canceled() if attempt.stop_reason == CANCELED else Released())
        if attempt.claimed.fault is not None:
            return _at_once(Failed(attempt.claimed.fault))
        if (timeout := attempt.plan.policy.timeout_seconds) is not None:
            attempt.deadline_at = time.monotonic() + timeout + self._cancel_grace_seconds
        if attempt.plan.action.isolation is Isolation.PROCESS:
            assert self._isolator is not None
            return self._isolator.run(self.context(attempt), attempt)
        return self.run(attempt)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._isolator is not None:
            await self._isolator.close()

    async def run(self, attempt: RunningAttempt) -> Outcome:
        """Run one attempt to its outcome. Never raises for what user code does."""
        action = attempt.plan.action
        try:
            arguments = action.signature.decode(attempt.claimed.input)
        except BaseException as error:  # noqa: BLE001 - the types of the input are user code too
            return Failed(input_failure(action.name, error))
        signature, executor = action.signature, action.executor
        positional: tuple[Any, ...] = ()
        if executor is None and signature.wants_context:
            positional = signature.placed(self.context(attempt), arguments)
        timeout = attempt.plan.policy.timeout_seconds
        limit: asyncio.Timeout | None = None
        try:
            if timeout is None:
                value = await (
                    self._call(action, positional, arguments, attempt)
                    if executor is None
                    else self._execute(action, arguments, attempt)
                )
            else:
                async with asyncio.timeout(timeout) as limit:
                    value = await (
                        self._call(action, positional, arguments, attempt)
                        if executor is None
                        else self._execute(action, arguments, attempt)
                    )
        except asyncio.CancelledError:
            if attempt.task is not None:
                attempt.task.uncancel()
            return outcome_of_stop(attempt)
        except TimeoutError as error:
            # The action may raise TimeoutError for its own reasons.
            is_ours = limit is not None and limit.expired()
            return timed_out(timeout) if is_ours else ended_by(error, action.now)
        except Escaped as escaped:
            return ended_by(escaped.error, action.now)
        except ESCAPES:
            raise
        except BaseException as error:  # noqa: BLE001 - what user code raises is data
            return ended_by(error, action.now)
        return self._completed(attempt, value)

    def _call(
        self, action: Action[..., Any], positional: tuple[Any, ...], arguments: dict[str, Any], attempt: RunningAttempt
    ) -> Awaitable[Any]:
        if action.isolation is Isolation.COROUTINE:
            return in_own_context(action.function(*positional, **arguments))
        if action.isolation is Isolation.THREAD:
            call = self._threads.submit(copy_context().run, contained, action.function, positional, arguments)
            return to_the_end(call, attempt.stop)
        raise AssertionError("process isolation is run by the isolator")

    def _execute(self, action: Action[..., Any], arguments: dict[str, Any], attempt: RunningAttempt) -> Awaitable[Any]:
        """Run the action's code through the executor of its app."""
        context = self.context(attempt)

        def call(positional: tuple[Any, ...], call_arguments: dict[str, Any]) -> Awaitable[Any]:
            return self._call(action, positional, call_arguments, attempt)

        awaited = self._awaited(attempt, context)
        return in_own_context(through_executor(action, context, arguments, call, awaited=awaited))

    def _completed(self, attempt: RunningAttempt, value: Any) -> Outcome:
        if value is None and attempt.writing is None:
            return _NO_OUTPUT
        commits = () if attempt.writing is None else tuple(attempt.writing.commits)
        try:
            return Completed(json_codec.encode(value, bytes_max=self._output_bytes_max, what="output"), commits)
        except HoldfastError as error:
            return Failed(Failure(code=OUTPUT_CODE, message=f"validation: {error}"))

    def context(self, attempt: RunningAttempt) -> Context:
        """Return the context that the attempt's code receives."""
        claimed, lane = attempt.claimed, attempt.plan.lane
        attempt.stop = threading.Event()
        notes = self._notes
        return Context(
            task_id=str(claimed.task_id),
            attempt=claimed.attempt,
            run_id=None if claimed.run_id is None else str(claimed.run_id),
            tenant=lane.tenant,
            action=lane.action,
            queue=lane.queue,
            tags=tuple(claimed.tags or ()),
            lease_token=str(claimed.lease_token),
            _stop=attempt.stop,
            _note=lambda kind, detail: notes.add(claimed, kind, detail),
            _effect_runner=self.effect_runner(attempt),
            _dataset=self._dataset_opener(attempt),
            _now=attempt.plan.action.now,
        )

    def _awaited(self, attempt: RunningAttempt, context: Context) -> Context:
        """Return the attempt's context for code on this loop, whatever the isolation of its own code."""
        effect_runner = context._effect_runner
        if attempt.plan.action.isolation is Isolation.COROUTINE:
            return context
        assert isinstance(effect_runner, EffectRunner)
        sender = Sender(claimed=attempt.claimed, tenant=attempt.plan.lane.tenant)
        return replace(
            context,
            _effect_runner=effect_runner.awaited(self._effect_store.request_on_loop(sender)),
            _dataset=self._dataset_opener(attempt, is_awaited=True),
        )

    def _dataset_opener(
        self, attempt: RunningAttempt, *, is_awaited: bool = False
    ) -> Callable[[str, int | None], DatasetWriter]:
        """Return the function by which the attempt opens dataset writers; nothing is created before the first call."""
        loop, claimed = asyncio.get_running_loop(), attempt.claimed

        def writer(name: str, version: int | None) -> DatasetWriter:
            dataset = self._datasets.find(name, version)
            if attempt.writing is None:
                lease = AttemptLease(claimed.task_id, claimed.attempt, claimed.lease_token)
                attempt.writing = AttemptDatasets(self._datasets, lease)
            if is_awaited or attempt.plan.action.isolation is Isolation.COROUTINE:
                return AsyncWriter(attempt.writing, dataset, here)
            return BlockingWriter(attempt.writing, dataset, waiting(loop))

        return writer

    def effect_runner(self, attempt: RunningAttempt) -> EffectRunner:
        """Return the runner of the attempt's effects and steps."""
        assert attempt.stop is not None
        sender = Sender(claimed=attempt.claimed, tenant=attempt.plan.lane.tenant)
        is_blocking = attempt.plan.action.isolation is Isolation.THREAD
        ask = (
            self._effect_store.request_from_thread(sender)
            if is_blocking
            else self._effect_store.request_on_loop(sender)
        )
        return EffectRunner(ask, is_blocking=is_blocking, stop=attempt.stop, bytes_max=self._output_bytes_max)


_NO_OUTPUT = Completed(b"null")


async def _at_once(outcome: Outcome) -> Outcome:
    return outcome


def outcome_of_stop(attempt: RunningAttempt) -> Outcome:
    """Return the outcome of an attempt that was cancelled from outside, by the recorded reason."""
    if attempt.stop_reason == CANCELED:
        return Canceled()
    if attempt.stop_reason == INTERRUPTED:
        return Released(reason=STOPPED)
    if attempt.stop_reason == FENCED:
        return Lost(Failure(code=LOST_CODE, message="The lease was lost."))
    return Failed(
        Failure(
            code="DAG_TASK_EXECUTION_EXCEPTION",
            type="asyncio.CancelledError",
            message="The action cancelled itself.",
        )
    )


def ended_by(error: BaseException, now: Callable[[], datetime]) -> Failed | Lost:
    """Return the outcome of an attempt whose code raised.

    The app's clock is user code too, so an error of the clock must not hide the original one.
    """
    try:
        at = now()
    except BaseException:
        log.warning("the app's clock failed; a Retry-After that is a date is not understood", exc_info=True)
        at = None
    return outcome_of(error, now=at)


def timed_out(seconds: float | None) -> Outcome:
    return TimedOut(Failure(code=TIMEOUT_CODE, message=f"The attempt timed out after {seconds:g} s."))
