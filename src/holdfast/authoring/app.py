"""The app: a name with its actions, flows, schedules and datasets, and its clients (`client`, `sync_client`).

Importing an app reads no settings and opens no connection. Settings are read once, when the first client is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.authoring.action import Action, ActionDecorator, AsyncAction
from holdfast.authoring.action_options import (
    RetryOn,
    check_memory,
    isolation_of,
    known_options,
    name_of,
    overrides_of,
    the_function,
)
from holdfast.authoring.action_signature import Signature
from holdfast.authoring.executor import Executor, valid_executor
from holdfast.authoring.flow.flow import Flow
from holdfast.authoring.flow.registry import FlowRegistry
from holdfast.authoring.schedule import Schedulable, Schedule, schedule_of
from holdfast.codec.clock import Clock, now_of
from holdfast.codec.cron import DEFAULT_ZONE
from holdfast.core.datasets.dataset import PLACE_DEFAULT, Dataset, defined
from holdfast.core.launching import valid_launcher
from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.schedules.schedule import Missed, Overlap
from holdfast.core.tasks.classify import Rule
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.values import bounds
from holdfast.errors import Invalid
from holdfast.settings.settings import Settings

if TYPE_CHECKING:
    from holdfast.authoring.context import Context
    from holdfast.client.client import Client
    from holdfast.client.sync_client import SyncClient
    from holdfast.worker.runtime.processor import Processor, SyncProcessor

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "default"


class App:
    """A set of actions and flows under one name. They are named `app.function`, so a file and a module agree.

    Attempts of its own actions run through `executor`, and `clock` supplies their time of day.
    """

    def __init__(
        self,
        name: str,
        *,
        settings: Settings | None = None,
        version: str = "",
        executor: Executor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = bounds.valid_action(name)
        self.version = version
        self._executor = valid_executor(executor)
        self._now = now_of(clock)
        self.actions: dict[str, Action[..., Any]] = {}
        self.flows = FlowRegistry()
        self.schedules: dict[str, Schedule] = {}
        self.datasets: dict[tuple[str, int], Dataset] = {}
        self._own = settings
        self._read: Settings | None = None

    @property
    def settings(self) -> Settings:
        if self._own is not None:
            return self._own
        if self._read is None:
            self._read = Settings.load(os.environ)
        return self._read

    @property
    def own_settings(self) -> Settings | None:
        """The settings that the code passed; without them the environment is read."""
        return self._own

    def configure(self, settings: Settings) -> None:
        """Use these settings; for programs that read their own (the CLI, the test kit)."""
        self._own = settings

    @overload
    def action(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> AsyncAction[P, R]: ...

    @overload
    def action(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncAction[P, R]: ...

    @overload
    def action(self, function: Callable[Concatenate[Context, P], R], /) -> Action[P, R]: ...

    @overload
    def action(self, function: Callable[P, R], /) -> Action[P, R]: ...

    @overload
    def action(
        self,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = bounds.PRIORITY_DEFAULT,
        max_retries: int | None = None,
        max_attempts: int | None = None,
        max_losses: int | None = None,
        timeout: str | float | None = None,
        isolation: str | None = None,
        memory_bytes_max: int | None = None,
        retry_on: RetryOn | tuple[RetryOn, ...] | list[RetryOn] = (),
        rules: list[Rule] | tuple[Rule, ...] = (),
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        breaker: Breaker | dict[str, Any] | bool | None = None,
        quota: Quota | dict[str, Any] | bool | None = None,
        launcher: str | None = None,
    ) -> ActionDecorator: ...

    def action(self, *bare: Callable[..., Any], **options: Any) -> Any:
        """Register a function as an action of this app: `@app.action` or `@app.action(queue=…)`."""
        known_options(options)
        if bare:
            return self._register(the_function(bare), options)
        return lambda *decorated: self._register(the_function(decorated), options)

    def _register(self, function: Callable[..., Any], options: dict[str, Any]) -> Action[..., Any]:
        name = bounds.valid_action(f"{self.name}.{options.get('name') or name_of(function)}")
        if name in self.actions:
            raise Invalid(
                f"The action {name} is registered twice.",
                code="action_exists",
                advice="Give one another name.",
            )
        overrides, isolation = overrides_of(options), isolation_of(function, options.get("isolation"))
        check_memory(overrides, isolation)
        action: Action[..., Any] = Action(
            name=name,
            function=function,
            queue=bounds.valid_queue(options.get("queue", DEFAULT_QUEUE)),
            overrides=overrides,
            isolation=isolation,
            priority=bounds.valid_priority(options.get("priority", bounds.PRIORITY_DEFAULT)),
            signature=Signature(function),
            breaker=Breaker.of(options.get("breaker")),
            quota=Quota.of(options.get("quota")),
            launcher=None if options.get("launcher") is None else valid_launcher(options["launcher"]),
            executor=self._executor,
            now=self._now,
        )
        self.actions[name] = action
        return action

    def include(self, other: App) -> None:
        """Also serve the actions, flows, schedules and datasets of another app, under their own names."""
        for name, action in other.actions.items():
            if name in self.actions:
                raise Invalid(
                    f"The action {name} is registered twice.", code="action_exists", advice="Give one another name."
                )
            self.actions[name] = action
        for flow in other.flows.versions.values():
            self.flows.keep(flow)
        for schedule in other.schedules.values():
            self._keep_schedule(schedule)
        for dataset in other.datasets.values():
            self._keep_dataset(dataset)

    @overload
    def flow(self, function: Callable[P, object], /) -> Flow[P]: ...

    @overload
    def flow(self, *, name: str | None = None, version: int = 1) -> Callable[[Callable[P, object]], Flow[P]]: ...

    def flow(self, *bare: Callable[..., object], name: str | None = None, version: int = 1) -> Any:
        """Register a plain function as a flow of this app: `@app.flow` or `@app.flow(version=2)`.

        The function describes which actions run on which values. It is traced when the flow is first needed. Several
        versions can be registered; a bare name means the newest.
        """
        if bare:
            return self.flows.keep(Flow.of_function(self._flow_name(bare[0], name), version, bare[0]))
        return lambda decorated: self.flows.keep(Flow.of_function(self._flow_name(decorated, name), version, decorated))

    def load_flows(self, *paths: str | Path) -> list[Flow[...]]:
        """Register flows written in YAML: files, or folders in which every `*.yaml` file is a flow.

        They are checked against the actions and flows that the app has so far, and against one another.
        """
        from holdfast.authoring.flow.yaml_flow import flow_files, read_flows

        ports = {name: action.signature.ports for name, action in self.actions.items()}
        files = [file for path in paths for file in flow_files(path)]
        found = read_flows(files, ports, self.flows.values())
        return [self.flows.keep(Flow.of_definition(definition)) for definition in found]

    def _flow_name(self, function: Callable[..., object], name: str | None) -> str:
        return bounds.valid_flow(f"{self.name}.{name or function.__name__}")

    def schedule(
        self,
        name: str,
        target: Schedulable,
        /,
        *,
        cron: str | None = None,
        every: str | float | timedelta | None = None,
        timezone: str = DEFAULT_ZONE,
        overlap: str = Overlap.SKIP,
        missed: str = Missed.LATEST,
        max_waiting: int = 10,
        input: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Run an action or a flow at set times; the schedule is named `app.name`.

        `cron` has five fields and is evaluated in `timezone`; `every` is a duration. `overlap` (skip, queue, replace,
        allow) decides what happens while the previous firing has not ended, `missed` (skip, latest, all) what happens
        to slots that passed while no scheduler ran. A parameter `scheduled_for` receives the slot's time.
        """
        made = schedule_of(
            bounds.valid_action(f"{self.name}.{name}"),
            target,
            cron=cron,
            every=every,
            timezone=timezone,
            overlap=overlap,
            missed=missed,
            max_waiting=max_waiting,
            input=input,
        )
        return self._keep_schedule(made)

    def _keep_schedule(self, schedule: Schedule) -> Schedule:
        if schedule.name in self.schedules:
            raise Invalid(
                f"The schedule {schedule.name} is declared twice.", code="schedule_exists", advice="Rename one."
            )
        self.schedules[schedule.name] = schedule
        return schedule

    def dataset(
        self,
        name: str,
        *,
        version: int = 1,
        columns: Mapping[str, str],
        key: str | Sequence[str] = (),
        schema: str = PLACE_DEFAULT,
    ) -> Dataset:
        """Declare one version of a dataset: actions write to it (`ctx.dataset`), readers select from its view."""
        return self._keep_dataset(defined(name, version=version, columns=columns, key=key, schema=schema))

    def _keep_dataset(self, dataset: Dataset) -> Dataset:
        name, version = dataset.name, dataset.version
        if self.datasets.setdefault((name, version), dataset) != dataset:
            raise Invalid(
                f"Version {version} of the dataset {name} is declared twice, and differently.",
                code="dataset_invalid",
                advice="Give one another version.",
            )
        return dataset

    def client(self) -> Client:
        """Return an asynchronous client: `async with app.client() as client:`"""
        # Imported on use: a worker needs the app but not the client, and starts in half the time without it.
        from holdfast.client.client import Client

        return Client(self.settings, self.actions, self.flows, datasets=self.datasets)

    def processor(
        self,
        *,
        worker_id: str = "",
        queues: Sequence[str] | None = None,
        retry_enabled: bool = True,
        dead_letter_enabled: bool = True,
        max_attempts: int | None = None,
        default_timeout_seconds: float | None = None,
        visibility_timeout_seconds: float | None = None,
        lease_seconds: float | None = None,
    ) -> Processor:
        """Process one task at a time, on request: `async with app.processor() as p: await p.process_once()`.

        `max_attempts` can only lower a task's own budget. A claim leases its task for `lease_seconds`, or else
        `visibility_timeout_seconds`, and the lease is renewed while the task runs.
        """
        from holdfast.worker.runtime.processor import PolicyOverrides, Processor

        overrides = PolicyOverrides(
            retries=retry_enabled,
            opens_dead_letters=dead_letter_enabled,
            max_attempts=max_attempts,
            default_timeout_seconds=default_timeout_seconds,
        )
        lease = visibility_timeout_seconds if lease_seconds is None else lease_seconds
        return Processor(self, name=worker_id, queues=queues, overrides=overrides, lease_seconds=lease)

    def sync_processor(self, **options: Any) -> SyncProcessor:
        """Like `processor`, for code without an event loop: `with app.sync_processor() as p: p.process_once()`"""
        from holdfast.worker.runtime.processor import SyncProcessor

        return SyncProcessor(self.processor(**options))

    def sync_client(self) -> SyncClient:
        """Like `client`, for code without an event loop: `with app.sync_client() as client:`"""
        from holdfast.client.sync_client import SyncClient

        return SyncClient(self.settings, self.actions, self.flows, datasets=self.datasets)
