"""Replay: run a task's captured input by a plain call of its code, and compare with the record.

The original is untouched: nothing is claimed and nothing is written. Logs and progress go to the replay's result. An
effect is answered from the record or from the caller's `effects`; otherwise it ends the replay before anything is sent.
The call runs through the executor of its app, as an attempt does; side effects of the executor itself are not
prevented. There is no time limit, so that a debugger can be used. Only the worker and this module turn user
exceptions into data.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.authoring.action import Action
from holdfast.authoring.context import Context
from holdfast.client.replay_record import DiscardedRows, FindReceipts, ReplayRecord
from holdfast.codec import json_codec
from holdfast.core.tasks.failure import Failure, failure_of, input_failure
from holdfast.core.tasks.replay import Receipt, Recorded, ReplayComparison, compare
from holdfast.core.values.bounds import task_number
from holdfast.engine.engine import Engine
from holdfast.engine.queries.task_snapshot import Captured, capture
from holdfast.errors import Conflict, HoldfastError
from holdfast.execution.attempt_pool import Escaped, in_own_context
from holdfast.execution.blocking_bridge import BlockingBridge
from holdfast.execution.dataset_writer import Datasets
from holdfast.execution.effect_runner import EffectRunner
from holdfast.execution.executor_calls import Call, through_executor
from holdfast.execution.threads import in_thread
from holdfast.store.catalog import Catalog

OUTPUT_CODE = "DAG_VALIDATION_OUTPUT_INVALID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a replay. `notes` are log lines and progress as (kind, detail), `effects` the requested names."""

    task_id: str
    attempt: int
    action: str
    input: Any
    state: str
    output: Any
    failure: Failure | None
    notes: list[tuple[str, dict[str, Any]]]
    effects: list[str]
    recorded: Recorded | None
    comparison: ReplayComparison


class Replay:
    """One replay of one task, ready to run."""

    def __init__(
        self,
        action: Action[..., Any],
        captured: Captured,
        *,
        effects: Mapping[str, Any] | None = None,
        datasets: Datasets | None = None,
        sends: bool = False,
        runs_steps: bool = False,
        find_receipts: FindReceipts | None = None,
        output_bytes_max: int,
    ) -> None:
        """Prepare a replay.

        `sends` permits an action that consists of a request or a command; without it such an action is refused. With
        `runs_steps`, steps are called even if the record has their results. `find_receipts` finds receipts
        that other tasks got; it may be called on any event loop.
        """
        if not sends and (runtime := getattr(action.function, "runtime", None)) is not None:
            raise _would_send(action.name, runtime)
        self._action = action
        self._captured = captured
        self._output_bytes_max = output_bytes_max
        self._notes: list[tuple[str, dict[str, Any]]] = []
        self._is_async = inspect.iscoroutinefunction(action.function)
        stop, answers = threading.Event(), effects or {}
        steps = None if runs_steps else captured.steps
        self._record = ReplayRecord(
            captured.receipts,
            answers,
            task_id=str(captured.task_id),
            find_receipts=find_receipts if find_receipts is None or self._is_async else _waiting(find_receipts),
            steps=steps,
            bytes_max=output_bytes_max,
        )
        self._unwritten = DiscardedRows(datasets or {}, answers)
        effect_runner = EffectRunner(
            self._record.ask, is_blocking=not self._is_async, stop=stop, bytes_max=output_bytes_max
        )
        self._context = Context(
            task_id=str(captured.task_id),
            attempt=captured.attempt,
            run_id=None if captured.run_id is None else str(captured.run_id),
            tenant=captured.lane.tenant,
            action=captured.lane.action,
            queue=captured.lane.queue,
            tags=captured.tags,
            _note=lambda kind, detail: self._notes.append((kind, detail)),
            _stop=stop,
            _dataset=self._unwritten.writer(is_async=self._is_async),
            _effect_runner=effect_runner,
            _now=action.now,
        )

    @property
    def input(self) -> Any:
        return json_codec.decode(self._captured.input)

    async def run(self) -> Replayed:
        """Run it on this event loop; a plain function runs in a thread."""
        try:
            if self._action.executor is not None:
                return self._completed(await self._execute(self._on_loop if self._is_async else self._in_thread))
            if self._is_async:
                return self._completed(await self._call())
            return self._completed(await asyncio.to_thread(self._call))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - exceptions of user code are data
            return self._failed(error)

    def run_here(self, *, debug: bool = False) -> Replayed:
        """Run it in this thread, where `breakpoint()` works; with `debug`, open the debugger where a failure
        happened.
        """
        try:
            if self._action.executor is not None:
                return self._completed(self._execute_here())
            return self._completed(asyncio.run(self._call()) if self._is_async else self._call())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - exceptions of user code are data
            if debug:
                _look_into(error)
            return self._failed(error)

    def _call(self) -> Any:
        signature, arguments = self._action.signature, self._arguments()
        positional = signature.placed(self._context, arguments) if signature.wants_context else ()
        return self._action.function(*positional, **arguments)

    def _arguments(self) -> dict[str, Any]:
        try:
            return self._action.signature.decode(self._captured.input)
        except Exception as error:
            raise _InputRefused(input_failure(self._action.name, error)) from error

    async def _execute(self, call: Call) -> Any:
        arguments, awaited, effect_runner = self._arguments(), self._context, self._context._effect_runner
        if not self._is_async:
            assert isinstance(effect_runner, EffectRunner)
            dataset = self._unwritten.writer(is_async=True)
            awaited = replace(awaited, _effect_runner=effect_runner.awaited(self._record.ask), _dataset=dataset)
        try:
            return await through_executor(self._action, self._context, arguments, call, awaited=awaited)
        except Escaped as escaped:
            raise escaped.error from None

    def _execute_here(self) -> Any:
        if self._is_async:
            return asyncio.run(self._execute(self._on_loop))
        with BlockingBridge() as bridge:
            return bridge.run(self._execute(partial(self._in_turn, bridge)))

    def _on_loop(self, positional: tuple[Any, ...], arguments: dict[str, Any]) -> Awaitable[Any]:
        return in_own_context(self._action.function(*positional, **arguments))

    def _in_thread(self, positional: tuple[Any, ...], arguments: dict[str, Any]) -> Awaitable[Any]:
        return in_thread(self._action.function, positional, arguments, self._context._stop)

    def _in_turn(
        self, bridge: BlockingBridge, positional: tuple[Any, ...], arguments: dict[str, Any]
    ) -> Awaitable[Any]:
        return bridge.call(self._action.function, positional, arguments, self._context._stop)

    def _completed(self, value: Any) -> Replayed:
        try:
            encoded = json_codec.encode(value, bytes_max=self._output_bytes_max, what="output")
        except HoldfastError as error:
            raise _InputRefused(Failure(code=OUTPUT_CODE, message=f"validation: {error}")) from error
        output, recorded = json_codec.decode(encoded), self._captured.recorded
        is_same = recorded is not None and json_codec.decode(recorded.output or b"null") == output
        return self._ended("completed", output, None, compare(recorded, None, is_same_output=is_same))

    def _failed(self, error: BaseException) -> Replayed:
        failure = error.failure if isinstance(error, _InputRefused) else failure_of(error)
        return self._ended("failed", None, failure, compare(self._captured.recorded, failure))

    def _ended(self, state: str, output: Any, failure: Failure | None, comparison: ReplayComparison) -> Replayed:
        return Replayed(
            task_id=str(self._captured.task_id),
            attempt=self._captured.attempt,
            action=self._action.name,
            input=self.input,
            state=state,
            output=output,
            failure=failure,
            notes=self._notes,
            effects=self._record.requested,
            recorded=self._captured.recorded,
            comparison=comparison,
        )


async def prepare(
    engine: Engine,
    find: Callable[[str], Action[..., Any]],
    datasets: Datasets,
    task_id: str,
    *,
    attempt: int | None,
    effects: Mapping[str, Any] | None,
    sends: bool,
    runs_steps: bool,
) -> Replay:
    """Read a task's input and record from the database, and find its code."""
    number = task_number(task_id)

    async def find_receipts(effect: str, key: str) -> Sequence[Receipt]:
        # The code that asks may run on another event loop, and after the client was closed.
        database = await engine.database.apart(sessions_max=1).open()
        try:
            found = await capture(database, Catalog(database), engine.tenant_id, number, also=(effect, key))
        finally:
            await database.close()
        return found.receipts

    captured = await capture(engine.database, engine.catalog, engine.tenant_id, number, attempt=attempt)
    return Replay(
        find(captured.lane.action),
        captured,
        effects=effects,
        datasets=datasets,
        sends=sends,
        runs_steps=runs_steps,
        find_receipts=find_receipts,
        output_bytes_max=engine.settings.limits.output_bytes_max,
    )


class _InputRefused(Exception):
    """Input or output that a worker would refuse, before or after the code runs."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _waiting(find_receipts: FindReceipts) -> FindReceipts:
    """Return a blocking variant for plain code, whose thread may already have an event loop."""

    async def waited(effect: str, key: str) -> Sequence[Receipt]:
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(asyncio.run, find_receipts(effect, key)).result()

    return waited


def _would_send(action: str, runtime: str) -> Conflict:
    does = "send its request" if runtime == "http" else "run its command"
    return Conflict(
        f"{action} has the runtime {runtime}: a replay would {does} for real.",
        code="replay_would_send",
        advice="If that is what you want: --send, or sends=True.",
    )


def _look_into(error: BaseException) -> None:
    """Open the debugger where the code failed."""
    import pdb

    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    pdb.post_mortem(error.__traceback__)
