"""Handles of the blocking client: a task, a run, dead letters and datasets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast.client.datasets import DatasetClient
from holdfast.client.dead_letters import DeadLetters
from holdfast.client.runs import Run
from holdfast.client.sync_bridge import SyncProxy, blocking, blocking_iterator, document_result
from holdfast.client.task import Task
from holdfast.core.datasets.dataset import Dataset

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class SyncTask(SyncProxy[Task[R]], Generic[R]):
    """A handle on one task, for blocking code."""

    __slots__ = ()

    @property
    def task_id(self) -> str:
        return self._async.task_id

    def __repr__(self) -> str:
        return f"SyncTask({self.task_id!r})"

    result = blocking(Task.result)
    state = blocking(Task.state)
    show = blocking(Task.show)
    wait = blocking(Task.wait)
    cancel = blocking(Task.cancel)
    why = blocking(Task.why)
    effects = blocking(Task.effects)


def blocking_start(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, Run]],
) -> Callable[Concatenate[SyncProxy[A], P], SyncRun]:
    """Return the blocking variant of a method that starts one run."""

    @wraps(method)
    def start(proxy: SyncProxy[A], /, *args: P.args, **kwargs: P.kwargs) -> SyncRun:
        return SyncRun(proxy._thread, proxy._thread.run(method(proxy._async, *args, **kwargs)))

    document_result(start, "Run", "SyncRun")
    return start


class SyncRun(SyncProxy[Run]):
    """A handle on one run, for blocking code."""

    __slots__ = ()

    @property
    def run_id(self) -> str:
        return self._async.run_id

    def __repr__(self) -> str:
        return f"SyncRun({self.run_id!r})"

    result = blocking(Run.result)
    wait = blocking(Run.wait)
    state = blocking(Run.state)
    output = blocking(Run.output)
    tasks = blocking(Run.tasks)
    show = blocking(Run.show)
    why = blocking(Run.why)
    events = blocking_iterator(Run.events)
    cancel = blocking(Run.cancel)
    pause = blocking(Run.pause)
    resume = blocking(Run.resume)
    signal = blocking(Run.signal)
    approve = blocking(Run.approve)
    reject = blocking(Run.reject)
    retry = blocking(Run.retry)
    plan_retry = blocking(Run.plan_retry)
    clone = blocking_start(Run.clone)


class SyncDeadLetters(SyncProxy[DeadLetters]):
    """Tasks that failed for good: inspect them, run them again, or ignore them."""

    __slots__ = ()

    groups = blocking(DeadLetters.groups)
    list = blocking(DeadLetters.list)
    redrive = blocking(DeadLetters.redrive)
    redrive_group = blocking(DeadLetters.redrive_group)
    ignore = blocking(DeadLetters.ignore)
    reinject_once = blocking(DeadLetters.reinject_once)


class SyncDatasets(SyncProxy[DatasetClient]):
    """Versions of datasets, identified by dataset and number."""

    __slots__ = ()

    declare = blocking(DatasetClient.declare)
    generations = blocking(DatasetClient.generations)
    commits = blocking(DatasetClient.commits)
    cut_over = blocking(DatasetClient.cut_over)
    roll_back = blocking(DatasetClient.roll_back)
    drop = blocking(DatasetClient.drop)

    def build(self, dataset: Dataset, work: Any, inputs: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Enqueue the work that builds a version; return handles on its tasks or runs."""
        handles = self._thread.run(self._async.build(dataset, work, inputs))
        return [(SyncTask if isinstance(handle, Task) else SyncRun)(self._thread, handle) for handle in handles]
