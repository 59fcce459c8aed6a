"""Blocking client: the same methods without `await`, for code that has no event loop.

A private event loop in a thread runs the asynchronous client, so there is one implementation. A test compares the
public names and parameters of both. Only `connection=` is missing, because a connection belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast._internal.event_loop_thread import EventLoopThread
from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.caller_transaction import refuse_for_blocking
from holdfast.client.client import Client
from holdfast.client.enqueue_requests import refuse_positional
from holdfast.client.results import TaskEnd
from holdfast.client.sync_handles import SyncDatasets, SyncDeadLetters, SyncRun, SyncTask
from holdfast.core.datasets.dataset import Dataset
from holdfast.core.explain.task import Explanation
from holdfast.core.flows.graph import FlowDefinition
from holdfast.engine.effects.compensate import Compensation
from holdfast.engine.effects.gate import EffectView
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.engine.queries.task_detail import TaskView
from holdfast.engine.queries.tasks import TaskRow
from holdfast.settings.settings import Settings

if TYPE_CHECKING:
    from holdfast.client.replay import Replay, Replayed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncClient:
    """Blocking client; open with `with app.sync_client() as client`. Safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        actions: Mapping[str, Action[..., Any]],
        flows: Mapping[str, Flow[...]] | None = None,
        *,
        datasets: Mapping[tuple[str, int], Dataset] | None = None,
    ) -> None:
        self._client = Client(settings, actions, flows, datasets=datasets)
        advice = "Use `with app.sync_client() as client:`, in the process that works with it."
        self._loop = EventLoopThread("client", self._client, advice=advice)

    def __enter__(self) -> SyncClient:
        self._loop.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.leave(kind, error, trace)

    @property
    def database_url(self) -> str:
        return self._client.database_url

    def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asynchronous client and wait for it."""
        return self._loop.run(work)

    @overload
    def enqueue(self, action: Action[P, R] | BoundAction[P, R], /, *none: P.args, **given: P.kwargs) -> SyncTask[R]: ...

    @overload
    def enqueue(self, action: str, /, **given: Any) -> SyncTask[Any]: ...

    def enqueue(self, action: Any, /, *positional: Any, **given: Any) -> SyncTask[Any]:
        refuse_positional(positional)
        refuse_for_blocking(given)
        return self.submit(action, given)

    def submit(self, action: Action[..., R] | BoundAction[..., R] | str, given: Mapping[str, Any], /) -> SyncTask[R]:
        return SyncTask(self, self.finished(self._client.submit(action, given)))

    def enqueue_many(
        self, action: Action[..., R] | BoundAction[..., R] | str, inputs: Iterable[Mapping[str, Any]], /
    ) -> list[SyncTask[R]]:
        return [SyncTask(self, task) for task in self.finished(self._client.enqueue_many(action, inputs))]

    def start(self, flow: Flow[P] | BoundFlow[P] | FlowDefinition | str, /, **given: Any) -> SyncRun:
        refuse_for_blocking(given)
        return SyncRun(self, self.finished(self._client.start(flow, **given)))

    def start_many(
        self,
        flow: Flow[P] | BoundFlow[P] | FlowDefinition | str,
        inputs: Iterable[Mapping[str, Any]],
        /,
        options: RunOptions | None = None,
    ) -> list[SyncRun]:
        return [SyncRun(self, run) for run in self.finished(self._client.start_many(flow, inputs, options))]

    def start_by_name(
        self, name: str, given: Mapping[str, Any], *, version: int | None = None, options: RunOptions | None = None
    ) -> SyncRun:
        return SyncRun(self, self.finished(self._client.start_by_name(name, given, version=version, options=options)))

    def run(self, run_id: str) -> SyncRun:
        return SyncRun(self, self._client.run(run_id))

    def task(self, task_id: str) -> SyncTask[Any]:
        return SyncTask(self, self._client.task(task_id))

    def action(self, name: str) -> Action[..., Any]:
        return self._client.action(name)

    @property
    def dead(self) -> SyncDeadLetters:
        """Tasks that failed for good: inspect them, run them again, or ignore them."""
        return SyncDeadLetters(self, self._client.dead)

    @property
    def datasets(self) -> SyncDatasets:
        """Build, inspect, cut over, roll back and drop datasets."""
        return SyncDatasets(self, self._client.datasets)

    def tasks(
        self,
        *,
        state: str | Sequence[str] = (),
        queue: str | None = None,
        action: str | None = None,
        tag: str | None = None,
        since: str | float | datetime | None = None,
        limit: int = 50,
    ) -> list[TaskRow]:
        wanted = self._client.tasks(state=state, queue=queue, action=action, tag=tag, since=since, limit=limit)
        return self.finished(wanted)

    def show(self, task_id: str) -> TaskView:
        return self.finished(self._client.show(task_id))

    def wake(self) -> None:
        self.finished(self._client.wake())

    def ending(self, task_id: str, *, timeout: str | float | None = None) -> TaskEnd:
        return self.finished(self._client.ending(task_id, timeout=timeout))

    def result(self, task_id: str, *, timeout: str | float | None = None) -> Any:
        return self.finished(self._client.result(task_id, timeout=timeout))

    def cancel(self, task_id: str, *, reason: str = "", actor: str = "client") -> str:
        return self.finished(self._client.cancel(task_id, reason=reason, actor=actor))

    def why(self, task_id: str) -> Explanation:
        return self.finished(self._client.why(task_id))

    def replay(
        self,
        task_id: str,
        *,
        attempt: int | None = None,
        effects: Mapping[str, Any] | None = None,
        sends: bool = False,
        runs_steps: bool = False,
    ) -> Replayed:
        return self.finished(
            self._client.replay(task_id, attempt=attempt, effects=effects, sends=sends, runs_steps=runs_steps)
        )

    def prepare_replay(
        self,
        task_id: str,
        *,
        attempt: int | None = None,
        effects: Mapping[str, Any] | None = None,
        sends: bool = False,
        runs_steps: bool = False,
    ) -> Replay:
        """Prepare a replay like `replay`, without running it; `client.finished(prepared.run())` runs it."""
        return self.finished(
            self._client.prepare_replay(task_id, attempt=attempt, effects=effects, sends=sends, runs_steps=runs_steps)
        )

    def retry(self, task_id: str, *, reason: str = "", actor: str = "client") -> int:
        return self.finished(self._client.retry(task_id, reason=reason, actor=actor))

    def effects(self, task_id: str) -> list[EffectView]:
        return self.finished(self._client.effects(task_id))

    def compensate(self, idempotency_key: str, *, reason: str, actor: str = "client") -> Compensation:
        return self.finished(self._client.compensate(idempotency_key, reason=reason, actor=actor))

    def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        key: str | None = None,
        run_id: str | None = None,
        actor: str = "client",
    ) -> None:
        self.finished(self._client.signal(name, payload, key=key, run_id=run_id, actor=actor))
