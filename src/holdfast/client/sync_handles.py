"""Handles of the blocking client: a task, a run, dead letters and datasets."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.client.datasets import DatasetClient
from holdfast.client.dead_letters import DeadLetters
from holdfast.client.run_events import RunEvent
from holdfast.client.runs import Run, RunTask
from holdfast.client.task import Task
from holdfast.core.datasets.dataset import Dataset
from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX
from holdfast.core.explain.task import Explanation
from holdfast.engine.datasets.declare import CommitView, Generation, GenerationView
from holdfast.engine.effects.gate import EffectView
from holdfast.engine.lifecycle.dead_letters.reinject import Reinjected
from holdfast.engine.lifecycle.runs.commands import PlannedRetry
from holdfast.engine.queries.dead_letters import DeadLetterView, GroupView
from holdfast.engine.queries.events import START
from holdfast.engine.queries.runs import RunView
from holdfast.engine.queries.task_detail import TaskView

if TYPE_CHECKING:
    from holdfast.client.sync_client import SyncClient


R = TypeVar("R")


class SyncTask(Generic[R]):
    """A handle on one task, for blocking code."""

    __slots__ = ("_client", "_task", "task_id")

    def __init__(self, client: SyncClient, task: Task[R]) -> None:
        self._client = client
        self._task = task
        self.task_id = task.task_id

    def __repr__(self) -> str:
        return f"SyncTask({self.task_id!r})"

    def result(self, timeout: str | float | None = None) -> R:
        return self._client.finished(self._task.result(timeout))

    def state(self) -> str:
        return self._client.finished(self._task.state())

    def show(self) -> TaskView:
        return self._client.finished(self._task.show())

    def wait(self, timeout: str | float | None = None) -> str:
        return self._client.finished(self._task.wait(timeout))

    def cancel(self, reason: str = "") -> str:
        return self._client.finished(self._task.cancel(reason))

    def why(self) -> Explanation:
        return self._client.finished(self._task.why())

    def effects(self) -> list[EffectView]:
        return self._client.finished(self._task.effects())


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

    def state(self) -> str:
        return self._client.finished(self._run.state())

    def output(self) -> Any:
        return self._client.finished(self._run.output())

    def tasks(self) -> list[RunTask]:
        return self._client.finished(self._run.tasks())

    def show(self) -> RunView:
        return self._client.finished(self._run.show())

    def why(self, node: str | None = None) -> Explanation:
        return self._client.finished(self._run.why(node))

    def events(self, after: str = START) -> Iterator[RunEvent]:
        """Yield events of the run, from the beginning or after a cursor, until it is over."""
        stream = self._run.events(after)
        try:
            while (event := self._client.finished(_next(stream))) is not None:
                yield event
        finally:
            self._client.finished(stream.aclose())  # type: ignore[attr-defined]

    def cancel(self, reason: str = "", *, actor: str = "client") -> None:
        self._client.finished(self._run.cancel(reason, actor=actor))

    def pause(self, reason: str = "", *, actor: str = "client") -> None:
        self._client.finished(self._run.pause(reason, actor=actor))

    def resume(self, reason: str = "", *, actor: str = "client") -> None:
        self._client.finished(self._run.resume(reason, actor=actor))

    def signal(self, name: str, payload: Any = None, *, key: str | None = None, actor: str = "client") -> None:
        self._client.finished(self._run.signal(name, payload, key=key, actor=actor))

    def approve(self, node: str, *, comment: str = "", actor: str = "client") -> None:
        self._client.finished(self._run.approve(node, comment=comment, actor=actor))

    def reject(self, node: str, *, comment: str = "", actor: str = "client") -> None:
        self._client.finished(self._run.reject(node, comment=comment, actor=actor))

    def retry(self, reason: str = "", *, only: str | None = None, actor: str = "client") -> list[str]:
        return self._client.finished(self._run.retry(reason, only=only, actor=actor))

    def plan_retry(self, *, only: str | None = None) -> PlannedRetry:
        return self._client.finished(self._run.plan_retry(only=only))

    def clone(self, **changed: Any) -> SyncRun:
        return SyncRun(self._client, self._client.finished(self._run.clone(**changed)))


async def _next(stream: Any) -> Any:
    return await anext(stream, None)


class SyncDeadLetters:
    """Tasks that failed for good: inspect them, run them again, or ignore them."""

    __slots__ = ("_client", "_dead")

    def __init__(self, client: SyncClient, dead: DeadLetters) -> None:
        self._client = client
        self._dead = dead

    def groups(self) -> builtins.list[GroupView]:
        return self._client.finished(self._dead.groups())

    def list(self, *, group: str | None = None, limit: int = 50) -> builtins.list[DeadLetterView]:
        return self._client.finished(self._dead.list(group=group, limit=limit))

    def redrive(self, task_id: str, *, reason: str, dispatches: int = DISPATCHES_MAX, actor: str = "client") -> int:
        done = self._dead.redrive(task_id, reason=reason, dispatches=dispatches, actor=actor)
        return self._client.finished(done)

    def redrive_group(
        self, fingerprint: str, *, reason: str, dispatches: int = DISPATCHES_MAX, actor: str = "client"
    ) -> int:
        done = self._dead.redrive_group(fingerprint, reason=reason, dispatches=dispatches, actor=actor)
        return self._client.finished(done)

    def ignore(self, task_id: str, *, reason: str, actor: str = "client") -> int:
        return self._client.finished(self._dead.ignore(task_id, reason=reason, actor=actor))

    def reinject_once(self, worker_id: str, visibility_timeout_seconds: float) -> Reinjected:
        return self._client.finished(self._dead.reinject_once(worker_id, visibility_timeout_seconds))


class SyncDatasets:
    """Versions of datasets, identified by dataset and number."""

    __slots__ = ("_client", "_datasets")

    def __init__(self, client: SyncClient, datasets: DatasetClient) -> None:
        self._client = client
        self._datasets = datasets

    def declare(self, dataset: Dataset) -> Generation:
        return self._client.finished(self._datasets.declare(dataset))

    def build(self, dataset: Dataset, work: Any, inputs: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Enqueue the work that builds a version; return handles on its tasks or runs."""
        handles = self._client.finished(self._datasets.build(dataset, work, inputs))
        return [SyncTask(self._client, one) if isinstance(one, Task) else SyncRun(self._client, one) for one in handles]

    def generations(self, name: str | None = None) -> list[GenerationView]:
        return self._client.finished(self._datasets.generations(name))

    def commits(self, name: str, *, limit: int = 20) -> list[CommitView]:
        return self._client.finished(self._datasets.commits(name, limit=limit))

    def cut_over(
        self, name: str, version: int, *, force: bool = False, reason: str = "", actor: str = "client"
    ) -> bool:
        return self._client.finished(self._datasets.cut_over(name, version, force=force, reason=reason, actor=actor))

    def roll_back(
        self, name: str, version: int, *, keep: bool = False, reason: str = "", actor: str = "client"
    ) -> int | None:
        return self._client.finished(self._datasets.roll_back(name, version, keep=keep, reason=reason, actor=actor))

    def drop(self, name: str, version: int, *, reason: str = "", actor: str = "client") -> None:
        self._client.finished(self._datasets.drop(name, version, reason=reason, actor=actor))
