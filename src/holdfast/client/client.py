"""The client: enqueue work, wait for it, inspect it, cancel it.

Everything is checked before anything is stored. With `connection=` the enqueue joins the caller's transaction; workers
learn of it by `wake()` after the commit, or by their next poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.caller_transaction import joined
from holdfast.client.datasets import DatasetClient
from holdfast.client.dead_letters import DeadLetters
from holdfast.client.enqueue_requests import Intake, batches, refuse_positional
from holdfast.client.flow_requests import FlowIntake
from holdfast.client.results import Results, TaskEnd, output_of
from holdfast.client.runs import Run, options_of, start_many, start_one
from holdfast.client.task import Task
from holdfast.codec import json_codec
from holdfast.core.datasets.dataset import Dataset
from holdfast.core.explain.task import Explanation
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.values import bounds
from holdfast.core.values.bounds import task_number
from holdfast.core.values.duration import seconds_of
from holdfast.engine.effects.compensate import Compensation, compensate
from holdfast.engine.effects.gate import EffectView, list_effects
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.runs.signals import send_signal
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.engine.lifecycle.tasks import cancel as cancel_verb
from holdfast.engine.lifecycle.tasks.enqueue import accept, accept_batches, accept_one, enqueue
from holdfast.engine.lifecycle.tasks.reconcile import unclaimed_lanes
from holdfast.engine.lifecycle.tasks.retry import retry
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.queries.explain_run import why
from holdfast.engine.queries.task_detail import TaskView, show_task
from holdfast.engine.queries.tasks import TaskRow, list_tasks
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
        self._place: DatabaseLocation | None = None
        self._theirs: Engine | None = None
        self._opened: Engine | None = None
        self._waits: Results | None = None
        self._forget()

    @classmethod
    def over(cls, engine: Engine) -> Client:
        """Return a client of an engine that the caller opened and will close; it knows no actions of its own."""
        client = cls(engine.settings, {})
        client._theirs = client._opened = engine
        client._waits = Results(engine.database, engine.tenant_id)
        return client

    async def __aenter__(self) -> Client:
        if self._opened is not None:
            return self
        # Cached names of the previous database may be wrong in the one that is opened now.
        self._forget()
        engine = self._theirs or await self._open()
        self._waits = Results(engine.database, engine.tenant_id)
        self._opened = engine
        return self

    async def _open(self) -> Engine:
        place = await asyncio.to_thread(resolve_database, self._settings, self._url)
        try:
            engine = await Engine(place.url, self._settings, migrates=place.is_embedded).__aenter__()
        except BaseException:
            place.close()
            raise
        self._place = place
        return engine

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # From here on the client is closed: calls made while the rest shuts down fail. It can be opened again.
        engine, self._opened = self._opened, None
        waits, self._waits = self._waits, None
        place, self._place = self._place, None
        try:
            if waits is not None:
                await waits.close()
            if place is not None and engine is not None:
                await engine.__aexit__(kind, error, trace)
        finally:
            if place is not None:
                place.close()

    def _forget(self) -> None:
        self._intake = Intake(self, self._actions, input_bytes_max=self._settings.limits.input_bytes_max)
        self._flow_intake = FlowIntake(self, self._actions, self._flows, self._intake)

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
        bound, engine = self._intake.bound(action), self.engine
        theirs = None if connection is None else joined(connection)
        [encoded] = self._intake.encode(bound, [input])
        if (key := bound.options.key) is None:
            interned = await self._intake.intern(bound)
            if not engine.catalog.allowance.is_open(engine.tenant_id):
                await engine.catalog.allowance.require(engine.tenant_id, 1, session=theirs)
            number = await accept_one(theirs or engine.database, interned, encoded)
        else:
            order, keys = self._intake.order(bound), [bounds.valid_key(key)]
            interned = await self._intake.intern(bound)
            accepted = await enqueue(engine.database, engine.catalog, order, [encoded], keys=keys, session=theirs)
            [number] = accepted.task_ids
        if theirs is None:
            self._intake.announce(engine, interned)
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
        bound = self._intake.bound(action)
        theirs = None if connection is None else joined(connection)
        if bound.options.key is not None:
            raise Invalid(
                "One key cannot stand for many tasks.", code="invalid_key", advice="Enqueue keyed tasks one by one."
            )
        interned, engine = await self._intake.intern(bound), self.engine
        parts = batches(inputs)
        first, second = next(parts, []), next(parts, [])
        if not second:
            encoded = self._intake.encode(bound, first)
            await engine.catalog.allowance.require(engine.tenant_id, len(encoded), session=theirs)
            numbers = await accept(theirs or engine.database, interned, encoded) if encoded else []
        else:
            await engine.catalog.allowance.require(engine.tenant_id, len(first) + len(second), session=theirs)
            # The total count is known only at the end. Exceeding the limit rolls all of them back.
            more = (engine.catalog.allowance.spend(engine.tenant_id, batch) for batch in parts)
            rest = (self._intake.encode(bound, batch) for batch in chain([first, second], more))
            if theirs is None:
                async with engine.database.transaction() as session:
                    numbers = await accept_batches(session, interned, rest)
            else:
                numbers = await accept_batches(theirs, interned, rest)
        if theirs is None:
            self._intake.announce(engine, interned)
        return [Task(self, number) for number in numbers]

    async def make_ready(self, work: Any) -> None:
        """Store the names that `work` needs, so that a transaction that then enqueues it needs no second session."""
        if isinstance(work, Action | BoundAction | str):
            await self._intake.intern(self._intake.bound(work))
        else:
            await self._flow_intake.snapshot(await self._flow_intake.found(work))

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
        theirs = None if connection is None else joined(connection)
        found = await self._flow_intake.found(flow)
        return await start_many(self, self._flow_intake, found, inputs, options, session=theirs)

    async def start_by_name(
        self,
        name: str,
        input: Mapping[str, Any],
        *,
        version: int | None = None,
        options: RunOptions | None = None,
    ) -> Run:
        """Start one run of a flow that a worker declared: its newest version, or the given one."""
        snapshot = await self.engine.catalog.flows.newest(self.engine.tenant_id, name, version)
        return await start_one(self, snapshot, input, options or RunOptions())

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
        engine = self.engine
        wait_key = bounds.valid_key(name if key is None else f"{name}:{key}")
        encoded = json_codec.encode(payload, bytes_max=self._settings.limits.input_bytes_max, what="input")
        run_number = None if run_id is None else bounds.run_number(run_id)
        done = await send_signal(
            engine.database, engine.catalog, engine.tenant_id, wait_key, encoded, run_id=run_number, actor=actor
        )
        await publish_and_propagate(engine, done)

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
        engine, number = self.engine, task_number(task_id)
        done = await cancel_verb.cancel(
            engine.database,
            engine.catalog,
            engine.tenant_id,
            [number],
            grace_seconds=self._settings.worker.cancel_grace_seconds,
            reason=reason,
            actor=actor,
        )
        await publish_and_propagate(engine, done.notifications)
        if number not in done.states:
            raise await cancel_verb.not_cancelable(engine.database, engine.tenant_id, number)
        return done.states[number]

    async def retry(self, task_id: str, *, reason: str = "", actor: str = "client") -> int:
        """Run a failed task again; return the number of the attempt that will run.

        Raises `Conflict` `retry_budget_exhausted` if its generation has spent its budget; `dead.redrive` starts another
        one.
        """
        engine = self.engine
        requeued = await retry(
            engine.database, engine.catalog, engine.tenant_id, task_number(task_id), actor=actor, reason=reason
        )
        await publish_and_propagate(engine, requeued.notifications)
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

        given = (self.engine, self._intake.action, self._datasets, task_id)
        return await prepare(*given, attempt=attempt, effects=effects, sends=sends, runs_steps=runs_steps)

    async def effects(self, task_id: str) -> list[EffectView]:
        """List the effects of a task's attempts and their results."""
        return await list_effects(self.engine.database, self.engine.tenant_id, task_ids=[task_number(task_id)])

    async def compensate(self, idempotency_key: str, *, reason: str, actor: str = "client") -> Compensation:
        """Undo an effect of a task that has ended, once, by the action registered for it."""
        engine = self.engine
        done = await compensate(
            engine.database, engine.catalog, engine.tenant_id, idempotency_key, actor=actor, reason=reason
        )
        engine.notifier.notify(lanes=() if done.lane_id is None else (done.lane_id,))
        return done

    def action(self, name: str) -> Action[..., Any]:
        """Return the app's action of that name; raise `NotFound` if there is none."""
        return self._intake.action(name)


def _closed() -> Invalid:
    return Invalid("The client is not open.", code="client_closed", advice="Use `async with app.client() as client:`.")
