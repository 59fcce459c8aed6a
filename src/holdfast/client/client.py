"""The client: enqueue work, wait for it, inspect it, cancel it.

Everything is checked before anything is stored. With `connection=` the enqueue joins the caller's transaction; workers
learn of it by `wake()` after the commit, or by their next poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.caller_transaction import joined
from holdfast.client.datasets import DatasetClient
from holdfast.client.dead_letters import DeadLetters
from holdfast.client.enqueue_requests import TaskRequests, refuse_positional
from holdfast.client.flow_requests import FlowRequests
from holdfast.client.results import Results, TaskEnd, output_of
from holdfast.client.runs import Run, options_of
from holdfast.client.task import Task
from holdfast.core.datasets.dataset import Dataset
from holdfast.core.explain.task import Explanation
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.values import bounds
from holdfast.core.values.bounds import task_number
from holdfast.core.values.duration import seconds_of
from holdfast.engine.effects.compensate import Compensation
from holdfast.engine.effects.gate import EffectView, list_effects
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.engine.lifecycle.tasks.enqueue import InputBatches
from holdfast.engine.lifecycle.tasks.reconcile import unclaimed_lanes
from holdfast.engine.queries.explain_run import why
from holdfast.engine.queries.task_detail import TaskView, show_task
from holdfast.engine.queries.tasks import TaskRow, list_tasks
from holdfast.engine.use_cases.runs import send_signal, start_declared
from holdfast.engine.use_cases.tasks import cancel_task, compensate_effect, retry_task
from holdfast.errors import Invalid, WaitTimeout
from holdfast.settings.settings import Settings
from holdfast.store.resolve import DatabaseLocation, resolve_database

if TYPE_CHECKING:
    from holdfast.client.replay import Replay, Replayed

__all__ = ["Client", "Task", "task_number"]

P = ParamSpec("P")
R = TypeVar("R")


class Client:
    """Enqueues, starts and inspects work; open with `async with app.client() as client`."""

    def __init__(
        self,
        settings: Settings,
        actions: Mapping[str, Action[..., Any]],
        flows: Mapping[str, Flow[...]] | None = None,
        *,
        url: str | None = None,
        datasets: Mapping[tuple[str, int], Dataset] | None = None,
    ) -> None:
        self._settings = settings
        self._actions = actions
        self._flows: Mapping[str, Flow[...]] = {} if flows is None else flows
        self._url = url
        self._datasets: Mapping[tuple[str, int], Dataset] = {} if datasets is None else datasets
        self._location: DatabaseLocation | None = None
        self._shared_engine: Engine | None = None
        self._opened: Engine | None = None
        self._waits: Results | None = None
        self._forget()

    @classmethod
    def over(cls, engine: Engine) -> Client:
        """Return a client of an engine that the caller opened and will close; it knows no actions of its own."""
        client = cls(engine.settings, {})
        client._shared_engine = client._opened = engine
        client._waits = Results(engine.database, engine.tenant_id)
        return client

    async def __aenter__(self) -> Client:
        if self._opened is not None:
            return self
        # Cached names of the previous database may be wrong in the one that is opened now.
        self._forget()
        engine = self._shared_engine or await self._open()
        self._waits = Results(engine.database, engine.tenant_id)
        self._opened = engine
        return self

    async def _open(self) -> Engine:
        location = await asyncio.to_thread(resolve_database, self._settings, self._url)
        try:
            engine = await Engine(location.url, self._settings, migrates=location.is_embedded).__aenter__()
        except BaseException:
            location.close()
            raise
        self._location = location
        return engine

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # From here on the client is closed: calls made while the rest shuts down fail. It can be opened again.
        engine, self._opened = self._opened, None
        waits, self._waits = self._waits, None
        location, self._location = self._location, None
        try:
            if waits is not None:
                await waits.close()
            if location is not None and engine is not None:
                await engine.__aexit__(kind, error, trace)
        finally:
            if location is not None:
                location.close()

    def _forget(self) -> None:
        self._task_requests = TaskRequests(self, self._actions, input_bytes_max=self._settings.limits.input_bytes_max)
        self._flow_requests = FlowRequests(self, self._actions, self._flows, self._task_requests)

    @property
    def database_url(self) -> str:
        """The URL of the open PostgreSQL, including an embedded one, for connections of your own."""
        return self.engine.database.url

    @property
    def engine(self) -> Engine:
        if self._opened is None:
            raise _closed()
        return self._opened

    @overload
    async def enqueue(
        self, action: Action[P, R] | BoundAction[P, R], /, *none: P.args, **input: P.kwargs
    ) -> Task[R]: ...

    @overload
    async def enqueue(
        self, action: Action[..., R] | BoundAction[..., R], /, *, connection: Any, **input: Any
    ) -> Task[R]: ...

    @overload
    async def enqueue(self, action: str, /, *, connection: Any = None, **input: Any) -> Task[Any]: ...

    async def enqueue(self, action: Any, /, *positional: Any, connection: Any = None, **input: Any) -> Task[Any]:
        """Enqueue one task. Keyword arguments are its input, checked against the action's parameters and their types.

        `connection` is an asyncpg connection whose open transaction the enqueue joins.
        """
        refuse_positional(positional)
        return await self.submit(action, input, connection=connection)

    async def submit(
        self, action: Action[..., R] | BoundAction[..., R] | str, input: Mapping[str, Any], /, *, connection: Any = None
    ) -> Task[R]:
        """Enqueue one task with its input as a mapping, whatever its names are."""
        bound = self._task_requests.bound(action)
        session = None if connection is None else joined(connection)
        encoded = self._task_requests.encode(bound, [input])
        keys = None if bound.options.key is None else [bounds.valid_key(bound.options.key)]
        [number] = await self._task_requests.enqueue(bound, encoded, keys=keys, session=session)
        return Task(self, number)

    async def enqueue_many(
        self,
        action: Action[..., R] | BoundAction[..., R] | str,
        inputs: Iterable[Mapping[str, Any]],
        /,
        *,
        connection: Any = None,
    ) -> list[Task[R]]:
        """Enqueue many tasks of one action: all of them, or none if one is refused."""
        bound = self._task_requests.bound(action)
        session = None if connection is None else joined(connection)
        if bound.options.key is not None:
            raise Invalid(
                "One key cannot stand for many tasks.", code="invalid_key", advice="Enqueue keyed tasks one by one."
            )
        task_inputs = InputBatches.of(inputs, partial(self._task_requests.encode, bound))
        numbers = await self._task_requests.enqueue(bound, task_inputs, session=session)
        return [Task(self, number) for number in numbers]

    async def make_ready(self, work: Any) -> None:
        """Store the names that `work` needs, so that a transaction that then enqueues it needs no second session."""
        if isinstance(work, Action | BoundAction | str):
            await self._task_requests.intern(self._task_requests.bound(work))
        else:
            await self._flow_requests.snapshot(await self._flow_requests.find(work))

    async def start(
        self, flow: Flow[P] | BoundFlow[P] | FlowDefinition | str, /, *, connection: Any = None, **input: Any
    ) -> Run:
        """Start one run of a flow, or of the newest version of a flow by its name. Keyword arguments are its input.

        Under a key (`flow.options(key=…)`) a repeated start returns the existing run.
        """
        return (await self.start_many(flow, [input], connection=connection))[0]

    async def start_many(
        self,
        flow: Flow[P] | BoundFlow[P] | FlowDefinition | str,
        inputs: Iterable[Mapping[str, Any]],
        /,
        options: RunOptions | None = None,
        *,
        connection: Any = None,
    ) -> list[Run]:
        """Start one run per input: all of them, or none if one is refused."""
        options = options_of(flow) if options is None else options
        session = None if connection is None else joined(connection)
        definition = await self._flow_requests.find(flow)
        numbers = await self._flow_requests.start(definition, inputs, options, session=session)
        return [Run(self, number) for number in numbers]

    async def start_by_name(
        self,
        name: str,
        input: Mapping[str, Any],
        *,
        version: int | None = None,
        options: RunOptions | None = None,
    ) -> Run:
        """Start one run of a flow that a worker declared: its newest version, or the given one."""
        number = await start_declared(self.engine, name, input, options or RunOptions(), version=version)
        return Run(self, number)

    @property
    def datasets(self) -> DatasetClient:
        """Build, inspect, cut over, roll back and drop datasets."""
        return DatasetClient(self)

    async def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        key: str | None = None,
        run_id: str | None = None,
        actor: str = "client",
    ) -> None:
        """Send an event to every existing run that waits, or will wait, for it; or to one run only."""
        number = None if run_id is None else bounds.run_number(run_id)
        await send_signal(self.engine, name, payload, key=key, run_id=number, actor=actor)

    def run(self, run_id: str) -> Run:
        """Return a handle on a run by its id."""
        return Run(self, bounds.run_number(run_id))

    def number_of(self, task_id: str) -> int:
        """Return the number behind a task's id; raise `NotFound` if it cannot be one."""
        return task_number(task_id)

    def task(self, task_id: str) -> Task[Any]:
        """Return a handle on a task by its id."""
        return Task(self, task_number(task_id))

    async def tasks(
        self,
        *,
        state: str | Sequence[str] = (),
        queue: str | None = None,
        action: str | None = None,
        tag: str | None = None,
        since: str | float | datetime | None = None,
        limit: int = 50,
    ) -> list[TaskRow]:
        """List the newest tasks, including those of flows; `since` is a time, or a duration before now."""
        engine = self.engine
        return await list_tasks(
            engine.database,
            engine.tenant_id,
            states=[state] if isinstance(state, str) else list(state),
            queue=queue,
            action=action,
            tag=tag,
            since=since,
            limit=limit,
        )

    async def show(self, task_id: str) -> TaskView:
        """Return one task in full: its input, output, attempts and effects."""
        engine = self.engine
        return await show_task(engine.database, engine.catalog, engine.tenant_id, task_number(task_id))

    async def wake(self) -> None:
        """Notify workers of work that was enqueued in the caller's own transaction."""
        self.engine.notifier.notify(lanes=await unclaimed_lanes(self.engine.database))

    async def ending(self, task_id: str, *, timeout: str | float | None = None) -> TaskEnd:
        """Wait for the end of a task or run and return how it ended; raise `WaitTimeout` if it takes longer."""
        if (waits := self._waits) is None:
            raise _closed()
        seconds, number = None if timeout is None else seconds_of(timeout), task_number(task_id)
        try:
            return await asyncio.wait_for(waits.wait(number), seconds)
        except TimeoutError:
            await waits.require(number)
            raise WaitTimeout(
                f"Task {task_id} has not ended after {seconds:g} s.",
                advice=f"See `holdfast task why {task_id}`.",
            ) from None

    async def result(self, task_id: str, *, timeout: str | float | None = None) -> Any:
        """Wait for the output of a task; raise `TaskFailed` if it failed or was canceled."""
        ending = await self.ending(task_id, timeout=timeout)
        return output_of(task_id, ending)

    async def cancel(self, task_id: str, *, reason: str = "", actor: str = "client") -> str:
        """Cancel a task: returns `canceled` at once, or `canceling` while it is asked to stop."""
        return await cancel_task(self.engine, task_number(task_id), actor=actor, reason=reason)

    async def retry(self, task_id: str, *, reason: str = "", actor: str = "client") -> int:
        """Run a failed task again; return the number of the attempt that will run.

        Raises `Conflict` `retry_budget_exhausted` if its generation has spent its budget; `dead.redrive` starts another
        one.
        """
        requeued = await retry_task(self.engine, task_number(task_id), actor=actor, reason=reason)
        return requeued.attempt

    @property
    def dead(self) -> DeadLetters:
        """Dead letters: tasks that failed for good, and how to run them again."""
        return DeadLetters(self)

    async def why(self, task_id: str) -> Explanation:
        """Explain why a task is in its state and what would move it."""
        engine, number = self.engine, task_number(task_id)
        return await why(
            engine.database, engine.catalog, engine.tenant_id, number, silent_seconds=engine.silent_seconds
        )

    async def replay(
        self,
        task_id: str,
        *,
        attempt: int | None = None,
        effects: Mapping[str, Any] | None = None,
        sends: bool = False,
        runs_steps: bool = False,
    ) -> Replayed:
        """Run the captured input of a task here, without touching the original, and compare with the record.

        The code is the app's own. Effects are answered from the record, or from `effects` by name (`name:key` for one
        of several); an effect without an answer ends the replay. Steps return their recorded results, unless
        `runs_steps`. An action that is itself a request or a command (runtimes http and shell) is refused unless
        `sends`.
        """
        prepared = await self.prepare_replay(
            task_id, attempt=attempt, effects=effects, sends=sends, runs_steps=runs_steps
        )
        return await prepared.run()

    async def prepare_replay(
        self,
        task_id: str,
        *,
        attempt: int | None = None,
        effects: Mapping[str, Any] | None = None,
        sends: bool = False,
        runs_steps: bool = False,
    ) -> Replay:
        """Prepare a replay like `replay`, without running it.

        `await prepared.run()` runs it; in blocking code, `client.finished(prepared.run())`.
        """
        from holdfast.client.replay import prepare

        return await prepare(
            self.engine,
            self.action,
            self._datasets,
            task_id,
            attempt=attempt,
            effects=effects,
            sends=sends,
            runs_steps=runs_steps,
        )

    async def effects(self, task_id: str) -> list[EffectView]:
        """List the effects of a task's attempts and their results."""
        return await list_effects(self.engine.database, self.engine.tenant_id, task_ids=[task_number(task_id)])

    async def compensate(self, idempotency_key: str, *, reason: str, actor: str = "client") -> Compensation:
        """Undo an effect of a task that has ended, once, by the action registered for it."""
        return await compensate_effect(self.engine, idempotency_key, actor=actor, reason=reason)

    def action(self, name: str) -> Action[..., Any]:
        """Return the app's action of that name; raise `NotFound` if there is none."""
        return self._task_requests.action(name)


def _closed() -> Invalid:
    return Invalid("The client is not open.", code="client_closed", advice="Use `async with app.client() as client:`.")
