"""The blocking twin: the same names without `await`, for code that has no event loop.

A private loop in a thread runs the ordinary client, so there is one implementation of everything.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.action import Action, Bound
from holdfast.client.client import Client, Task
from holdfast.client.run_events import RunEvent
from holdfast.client.runs import Run, RunTask
from holdfast.core.dataset import Dataset
from holdfast.core.explain import Explanation
from holdfast.core.graph import FlowDefinition
from holdfast.dispatcher.observe import START
from holdfast.dispatcher.show_runs import RunView
from holdfast.dispatcher.start import RunOptions
from holdfast.flow.flow import BoundFlow, Flow
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.client.replay import Replayed

P = ParamSpec("P")
T = TypeVar("T")


class SyncTask:
    """A handle on one task, for blocking code."""

    __slots__ = ("_client", "_task", "task_id")

    def __init__(self, client: SyncClient, task: Task) -> None:
        self._client = client
        self._task = task
        self.task_id = task.task_id

    def __repr__(self) -> str:
        return f"SyncTask({self.task_id!r})"

    def result(self, timeout: str | float | None = None) -> Any:
        return self._client.finished(self._task.result(timeout))

    def wait(self, timeout: str | float | None = None) -> str:
        return self._client.finished(self._task.wait(timeout))

    def cancel(self, reason: str = "") -> str:
        return self._client.finished(self._task.cancel(reason))

    def why(self) -> Explanation:
        return self._client.finished(self._task.why())


class SyncRun:
    """A handle on one run, for blocking code."""

    __slots__ = ("_client", "_run", "run_id")

    def __init__(self, client: SyncClient, run: Run) -> None:
        self._client = client
        self._run = run
        self.run_id = run.run_id

    def __repr__(self) -> str:
        return f"SyncRun({self.run_id!r})"

    def result(self, timeout: str | float | None = None) -> Any:
        return self._client.finished(self._run.result(timeout))

    def wait(self, timeout: str | float | None = None) -> str:
        return self._client.finished(self._run.wait(timeout))

    def output(self) -> Any:
        return self._client.finished(self._run.output())

    def tasks(self) -> list[RunTask]:
        return self._client.finished(self._run.tasks())

    def show(self) -> RunView:
        return self._client.finished(self._run.show())

    def why(self, node: str | None = None) -> Explanation:
        return self._client.finished(self._run.why(node))

    def events(self, after: str = START) -> Iterator[RunEvent]:
        """Follow what happens to the run, from its beginning or after a cursor, until it is over."""
        stream = self._run.events(after)
        try:
            while (event := self._client.finished(_next(stream))) is not None:
                yield event
        finally:
            self._client.finished(stream.aclose())  # type: ignore[attr-defined]

    def cancel(self, reason: str = "") -> None:
        self._client.finished(self._run.cancel(reason))

    def pause(self, reason: str = "") -> None:
        self._client.finished(self._run.pause(reason))

    def resume(self, reason: str = "") -> None:
        self._client.finished(self._run.resume(reason))

    def signal(self, name: str, payload: Any = None, *, key: str | None = None) -> None:
        self._client.finished(self._run.signal(name, payload, key=key))

    def approve(self, node: str, *, comment: str = "") -> None:
        self._client.finished(self._run.approve(node, comment=comment))

    def reject(self, node: str, *, comment: str = "") -> None:
        self._client.finished(self._run.reject(node, comment=comment))

    def retry(self, reason: str = "", *, only: str | None = None) -> list[str]:
        return self._client.finished(self._run.retry(reason, only=only))

    def clone(self, **changed: Any) -> SyncRun:
        return SyncRun(self._client, self._client.finished(self._run.clone(**changed)))


async def _next(stream: Any) -> Any:
    return await anext(stream, None)


class SyncClient:
    """Open with `with app.sync_client() as client`. Safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        actions: Mapping[str, Action[..., Any]],
        flows: Mapping[str, Flow[...]] | None = None,
        *,
        datasets: Mapping[tuple[str, int], Dataset] | None = None,
    ) -> None:
        self._client = Client(settings, actions, flows, datasets=datasets)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)

    def __enter__(self) -> SyncClient:
        self._thread.start()
        self.finished(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finished(self._client.__aexit__(kind, error, trace))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asynchronous client and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def enqueue(self, action: Action[..., Any] | Bound[..., Any] | str, /, **given: Any) -> SyncTask:
        return SyncTask(self, self.finished(self._client.enqueue(action, **given)))

    def enqueue_many(
        self, action: Action[..., Any] | Bound[..., Any] | str, inputs: Iterable[Mapping[str, Any]], /
    ) -> list[SyncTask]:
        return [SyncTask(self, task) for task in self.finished(self._client.enqueue_many(action, inputs))]

    def start(self, flow: Flow[P] | BoundFlow[P] | FlowDefinition | str, /, **given: Any) -> SyncRun:
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

    def task(self, task_id: str) -> SyncTask:
        return SyncTask(self, self._client.task(task_id))

    def cancel(self, task_id: str, *, reason: str = "") -> str:
        return self.finished(self._client.cancel(task_id, reason=reason))

    def why(self, task_id: str) -> Explanation:
        return self.finished(self._client.why(task_id))

    def replay(
        self,
        task_id: str,
        *,
        attempt: int | None = None,
        effects: Mapping[str, Any] | None = None,
        sends: bool = False,
    ) -> Replayed:
        return self.finished(self._client.replay(task_id, attempt=attempt, effects=effects, sends=sends))

    def retry(self, task_id: str, *, reason: str = "") -> int:
        return self.finished(self._client.retry(task_id, reason=reason))

    def signal(self, name: str, payload: Any = None, *, key: str | None = None, run_id: str | None = None) -> None:
        self.finished(self._client.signal(name, payload, key=key, run_id=run_id))
