"""The process for isolated attempts: `python -m holdfast.worker.isolation.child CONNECTION WORKER_PID`.

It runs one attempt at a time in its main thread, so that a signal reaches the running code; a second thread listens. An
executor runs here too: on the same event loop as a coroutine, or in a second thread for a plain function. The process
leads its own process group, is killed when its worker dies, and leaves stdout and stderr to the user's code.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import queue
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

from holdfast._internal.process_tree import lead_group
from holdfast.authoring.action import Action
from holdfast.authoring.app import App
from holdfast.authoring.context import Context, DatasetWriter
from holdfast.authoring.loader import load_app
from holdfast.codec import json_codec
from holdfast.core.datasets.dataset import Commit
from holdfast.core.tasks.failure import Failure, failure_of, input_failure
from holdfast.core.tasks.outcome import Lost
from holdfast.engine.datasets.stage import AttemptLease
from holdfast.errors import HoldfastError
from holdfast.execution.attempt_pool import Escaped, in_own_context
from holdfast.execution.blocking_bridge import BlockingBridge
from holdfast.execution.dataset_writer import (
    AsyncWriter,
    AttemptDatasets,
    BlockingWriter,
    DeclaredDatasets,
    NoDatasets,
    WriterLoop,
)
from holdfast.execution.effect_runner import EffectRunner
from holdfast.execution.executor_calls import through_executor
from holdfast.execution.notes import encoded_note
from holdfast.execution.runner import OUTPUT_CODE, ended_by
from holdfast.net.server_url import is_server
from holdfast.store.database import Database
from holdfast.worker.isolation.frames import (
    AppUnusable,
    AttemptEnded,
    Hello,
    Message,
    NoteFrame,
    Ready,
    RequestAnswer,
    Start,
    StopAttempt,
    frame,
)
from holdfast.worker.isolation.frames import receive_blocking as receive
from holdfast.worker.isolation.memory_limit import MemoryLimit
from holdfast.worker.isolation.requests import AttemptRequests
from holdfast.worker.supervisor import start_orders as wire_orders

MEMORY_CODE = "DAG_TASK_EXECUTION_MEMORY_LIMIT"
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> NoReturn:
    _tie_life_to(int(arguments[1]))
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    hello = receive(connection)
    if not isinstance(hello, Hello):
        sys.exit(0)
    orders = wire_orders.decode(hello.orders)
    try:
        app = load_app(orders.app_ref, orders.packs)
    except HoldfastError as error:
        connection.sendall(frame(AppUnusable(str(error))))
        sys.exit(1)
    app.configure(replace(orders.settings, url=orders.url))
    connection.sendall(frame(Ready()))
    _Process(app, connection).run()


class _Process:
    def __init__(self, app: App, connection: socket.socket) -> None:
        self._app = app
        self._connection = connection
        self._send_lock = threading.Lock()
        self._starts: queue.SimpleQueue[Start] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._cancel: Callable[[], None] | None = None
        self._is_running = False
        url = app.settings.url or ""
        database = Database(url, sessions_max=1, prepare=app.settings.prepare)
        self._declared = (
            NoDatasets() if is_server(url) else DeclaredDatasets(database, app.settings.tenant, app.datasets)
        )
        self._writer_loop: WriterLoop | None = None
        self._requests = AttemptRequests(self._send)

    def run(self) -> NoReturn:
        signal.signal(signal.SIGTERM, self._on_terminate)
        threading.Thread(target=self._listen, name="holdfast-listen", daemon=True).start()
        while True:
            self._send(self._attempt(self._starts.get()))

    def _listen(self) -> None:
        while (message := receive(self._connection)) is not None:
            match message:
                case Start():
                    self._stop = threading.Event()
                    self._starts.put(message)
                case RequestAnswer():
                    self._requests.deliver(message)
                case StopAttempt():
                    self._stop.set()
                    if self._cancel is not None:
                        self._cancel()
                case _:
                    raise AssertionError(f"a worker does not say {message}")
        # The worker closed the connection or died: nothing here may outlive it.
        os.killpg(0, signal.SIGKILL)

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Raise SystemExit in the running code, so that its `finally` and `with` blocks run."""
        if self._is_running:
            raise SystemExit("The attempt was told to stop.")

    def _attempt(self, start: Start) -> AttemptEnded:
        action = self._app.actions.get(start.action)
        if action is None:
            return _failed(Failure(code="action_not_found", message=f"action not found: {start.action}"))
        try:
            arguments = action.signature.decode(start.input)
        except BaseException as error:  # noqa: BLE001 - the types of the input are user code too
            return _failed(input_failure(action.name, error))
        limit = MemoryLimit(start.memory_bytes_max)
        writing = self._writing(start)
        try:
            # Start the thread before the limit is set: its memory does not count for the attempt.
            with BlockingBridge() if action.executor is not None and _is_plain(action) else nullcontext() as bridge:
                self._is_running = True
                limit.set()
                value = self._call(action, self._context(action, start, writing), arguments, writing, bridge)
        except MemoryError as error:
            self._is_running = False
            limit.lift()
            return _out_of_memory(error, start.memory_bytes_max)
        except BaseException as error:  # noqa: BLE001 - what user code raises is data
            self._is_running = False
            limit.lift()
            ended = ended_by(error.error if isinstance(error, Escaped) else error, action.now)
            return AttemptEnded(None, ended.failure, is_lost=isinstance(ended, Lost))
        self._is_running = False
        limit.lift()
        return _completed(value, start.output_bytes_max, tuple(writing.commits))

    def _call(
        self,
        action: Action[..., Any],
        context: Context,
        arguments: dict[str, Any],
        writing: AttemptDatasets,
        bridge: BlockingBridge | None,
    ) -> Any:
        if bridge is not None:
            return self._execute_over_bridge(action, context, arguments, writing, bridge)
        if action.executor is not None:
            return self._execute(action, context, arguments)
        signature = action.signature
        positional = signature.placed(context, arguments) if signature.wants_context else ()
        if _is_plain(action):
            return copy_context().run(action.function, *positional, **arguments)
        with asyncio.Runner() as runner:
            return runner.run(self._cancellable(action.function(*positional, **arguments)))

    def _execute(self, action: Action[..., Any], context: Context, arguments: dict[str, Any]) -> Any:
        """Run the executor of a coroutine on the same event loop."""

        def call(positional: tuple[Any, ...], call_arguments: dict[str, Any]) -> Awaitable[Any]:
            return in_own_context(action.function(*positional, **call_arguments))

        with asyncio.Runner() as runner:
            work = through_executor(action, context, arguments, call, awaited=context)
            return runner.run(self._cancellable(work))

    def _execute_over_bridge(
        self,
        action: Action[..., Any],
        context: Context,
        arguments: dict[str, Any],
        writing: AttemptDatasets,
        bridge: BlockingBridge,
    ) -> Any:
        """Run the executor of a plain function in a second thread.

        The function runs in this thread, as it would without one.
        """
        stop, effect_runner = self._stop, context._effect_runner
        assert isinstance(effect_runner, EffectRunner)
        awaited = replace(
            context,
            _effect_runner=effect_runner.awaited(self._requests.ask),
            _dataset=self._datasets(writing, is_blocking=False),
        )

        def call(positional: tuple[Any, ...], call_arguments: dict[str, Any]) -> Awaitable[Any]:
            return bridge.call(action.function, positional, call_arguments, stop)

        work = through_executor(action, context, arguments, call, awaited=awaited)
        return bridge.run(self._cancellable(work))

    async def _cancellable(self, call: Any) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop may just have ended
                loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        try:
            if self._stop.is_set():
                task.cancel()
            return await call
        finally:
            self._cancel = None

    def _writing(self, start: Start) -> AttemptDatasets:
        lease = AttemptLease(int(start.task_id), start.attempt, uuid.UUID(start.lease_token))
        return AttemptDatasets(self._declared, lease)

    def _datasets(self, writing: AttemptDatasets, *, is_blocking: bool) -> Callable[[str, int | None], DatasetWriter]:
        def writer(name: str, version: int | None) -> DatasetWriter:
            self._writer_loop = self._writer_loop or WriterLoop()
            dataset = self._declared.find(name, version)
            if is_blocking:
                return BlockingWriter(writing, dataset, self._writer_loop.wait)
            return AsyncWriter(writing, dataset, self._writer_loop.awaitable)

        return writer

    def _context(self, action: Action[..., Any], start: Start, writing: AttemptDatasets) -> Context:
        is_blocking = _is_plain(action)
        ask = self._requests.ask_blocking if is_blocking else self._requests.ask
        return Context(
            task_id=start.task_id,
            attempt=start.attempt,
            tenant=start.tenant,
            action=start.action,
            queue=start.queue,
            tags=start.tags,
            run_id=start.run_id,
            lease_token=start.lease_token,
            _effect_runner=EffectRunner(
                ask, is_blocking=is_blocking, stop=self._stop, bytes_max=start.output_bytes_max
            ),
            _stop=self._stop,
            _note=lambda kind, detail: self._send(NoteFrame(kind, encoded_note(detail).encode())),
            _dataset=self._datasets(writing, is_blocking=is_blocking),
            _now=action.now,
        )

    def _send(self, message: Message) -> None:
        with self._send_lock:
            try:
                self._connection.sendall(frame(message))
            except ConnectionError:
                os.killpg(0, signal.SIGKILL)


def _is_plain(action: Action[..., Any]) -> bool:
    return not inspect.iscoroutinefunction(action.function)


def _completed(value: Any, bytes_max: int, commits: tuple[Commit, ...]) -> AttemptEnded:
    try:
        return AttemptEnded(json_codec.encode(value, bytes_max=bytes_max, what="output"), None, commits=commits)
    except HoldfastError as error:
        return _failed(Failure(code=OUTPUT_CODE, message=f"validation: {error}"))


def _failed(failure: Failure) -> AttemptEnded:
    return AttemptEnded(None, failure)


def _out_of_memory(error: MemoryError, bytes_max: int | None) -> AttemptEnded:
    failure = failure_of(error)
    if bytes_max is not None:
        message = f"The attempt needed more than the {bytes_max} bytes of memory it may use."
        failure = replace(failure, code=MEMORY_CODE, message=message)
    return AttemptEnded(None, failure, is_spent=True)


def _tie_life_to(worker_pid: int) -> None:
    """Lead a new process group, so that one signal reaches everything started here, and die with the worker."""
    lead_group()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker_pid:  # the worker died before prctl took effect
        sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
