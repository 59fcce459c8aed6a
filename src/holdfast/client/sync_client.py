"""Blocking client: the same methods without `await`, for code that has no event loop.

A private event loop in a thread runs the asynchronous client (see `sync_bridge`). Only `connection=` is missing,
because a connection belongs to one event loop; the methods that have it are written out here.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from holdfast._internal.event_loop_thread import EventLoopThread
from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.caller_transaction import refuse_for_blocking
from holdfast.client.client import Client
from holdfast.client.enqueue_requests import refuse_positional
from holdfast.client.sync_bridge import SyncProxy, blocking
from holdfast.client.sync_handles import SyncDatasets, SyncDeadLetters, SyncRun, SyncTask, blocking_start
from holdfast.core.datasets.dataset import Dataset
from holdfast.core.flows.graph import FlowDefinition
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.settings.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncClient(SyncProxy[Client]):
    """Blocking client; open with `with app.sync_client() as client`. Safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        actions: Mapping[str, Action[..., Any]],
        flows: Mapping[str, Flow[...]] | None = None,
        *,
        datasets: Mapping[tuple[str, int], Dataset] | None = None,
    ) -> None:
        client = Client(settings, actions, flows, datasets=datasets)
        advice = "Use `with app.sync_client() as client:`, in the process that works with it."
        super().__init__(EventLoopThread("client", client, advice=advice), client)

    def __enter__(self) -> SyncClient:
        self._thread.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.leave(kind, error, trace)

    @property
    def database_url(self) -> str:
        """The URL of the open PostgreSQL, including an embedded one, for connections of your own."""
        return self._async.database_url

    def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asynchronous client and wait for it."""
        return self._thread.run(work)

    @overload
    def enqueue(self, action: Action[P, R] | BoundAction[P, R], /, *none: P.args, **input: P.kwargs) -> SyncTask[R]: ...

    @overload
    def enqueue(self, action: str, /, **input: Any) -> SyncTask[Any]: ...

    def enqueue(self, action: Any, /, *positional: Any, **input: Any) -> SyncTask[Any]:
        """Enqueue one task. Keyword arguments are its input, checked against the action's parameters and types."""
        refuse_positional(positional)
        refuse_for_blocking(input)
        return self.submit(action, input)

    def submit(self, action: Action[..., R] | BoundAction[..., R] | str, input: Mapping[str, Any], /) -> SyncTask[R]:
        """Enqueue one task with its input as a mapping, whatever its names are."""
        return SyncTask(self._thread, self._thread.run(self._async.submit(action, input)))

    def enqueue_many(
        self, action: Action[..., R] | BoundAction[..., R] | str, inputs: Iterable[Mapping[str, Any]], /
    ) -> list[SyncTask[R]]:
        """Enqueue many tasks of one action: all of them, or none if one is refused."""
        tasks = self._thread.run(self._async.enqueue_many(action, inputs))
        return [SyncTask(self._thread, task) for task in tasks]

    def start(self, flow: Flow[P] | BoundFlow[P] | FlowDefinition | str, /, **input: Any) -> SyncRun:
        """Start one run of a flow, or of the newest version of a flow by its name. Keyword arguments are its input."""
        refuse_for_blocking(input)
        return SyncRun(self._thread, self._thread.run(self._async.start(flow, **input)))

    def start_many(
        self,
        flow: Flow[P] | BoundFlow[P] | FlowDefinition | str,
        inputs: Iterable[Mapping[str, Any]],
        /,
        options: RunOptions | None = None,
    ) -> list[SyncRun]:
        """Start one run per input: all of them, or none if one is refused."""
        runs = self._thread.run(self._async.start_many(flow, inputs, options))
        return [SyncRun(self._thread, run) for run in runs]

    def run(self, run_id: str) -> SyncRun:
        """Return a handle on a run by its id."""
        return SyncRun(self._thread, self._async.run(run_id))

    def task(self, task_id: str) -> SyncTask[Any]:
        """Return a handle on a task by its id."""
        return SyncTask(self._thread, self._async.task(task_id))

    def action(self, name: str) -> Action[..., Any]:
        """Return the app's action of that name; raise `NotFound` if there is none."""
        return self._async.action(name)

    @property
    def dead(self) -> SyncDeadLetters:
        """Dead letters: tasks that failed for good, and how to run them again."""
        return SyncDeadLetters(self._thread, self._async.dead)

    @property
    def datasets(self) -> SyncDatasets:
        """Build, inspect, cut over, roll back and drop datasets."""
        return SyncDatasets(self._thread, self._async.datasets)

    start_by_name = blocking_start(Client.start_by_name)
    tasks = blocking(Client.tasks)
    show = blocking(Client.show)
    wake = blocking(Client.wake)
    ending = blocking(Client.ending)
    result = blocking(Client.result)
    cancel = blocking(Client.cancel)
    retry = blocking(Client.retry)
    why = blocking(Client.why)
    replay = blocking(Client.replay)
    prepare_replay = blocking(Client.prepare_replay)
    effects = blocking(Client.effects)
    compensate = blocking(Client.compensate)
    signal = blocking(Client.signal)
