"""The app: a name, its actions, and the doors to a database (`client`, `sync_client`).

Nothing is read or connected at import; settings are read once, when the first door opens.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ParamSpec, TypeVar, overload

from holdfast.action import Action, Isolation, Signature
from holdfast.client.blocking import SyncClient
from holdfast.client.client import Client
from holdfast.core import limits
from holdfast.core.circuit import Breaker
from holdfast.core.classify import Rule
from holdfast.core.duration import seconds_of
from holdfast.core.quota import Quota
from holdfast.core.retry import RetryPolicy
from holdfast.errors import Invalid
from holdfast.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "default"


class App:
    """A set of actions under one name. Actions are called `app.function`, so a file and a module agree."""

    def __init__(self, name: str, *, settings: Settings | None = None, version: str = "") -> None:
        self.name = limits.valid_action(name)
        self.version = version
        self.actions: dict[str, Action[..., Any]] = {}
        self._settings = settings

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            self._settings = Settings.load(os.environ)
        return self._settings

    def configure(self, settings: Settings) -> None:
        """Use these settings; for shells that read their own (the CLI, the test kit)."""
        self._settings = settings

    @overload
    def action(self, function: Callable[P, R], /) -> Action[P, R]: ...

    @overload
    def action(
        self,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = limits.PRIORITY_DEFAULT,
        max_retries: int | None = None,
        max_attempts: int | None = None,
        max_losses: int | None = None,
        timeout: str | float | None = None,
        isolation: str | None = None,
        memory_bytes_max: int | None = None,
        rules: list[Rule] | tuple[Rule, ...] = (),
        retry: dict[str, Any] | None = None,
        breaker: Breaker | dict[str, Any] | bool | None = None,
        quota: Quota | dict[str, Any] | bool | None = None,
    ) -> Callable[[Callable[P, R]], Action[P, R]]: ...

    def action(self, *bare: Callable[..., Any], **options: Any) -> Any:
        """Register a function as an action of this app: `@app.action` or `@app.action(queue=…)`."""
        if bare:
            return self._register(bare[0], {})
        return lambda decorated: self._register(decorated, options)

    def _register(self, function: Callable[..., Any], options: dict[str, Any]) -> Action[..., Any]:
        name = limits.valid_action(f"{self.name}.{options.get('name') or function.__name__}")
        if name in self.actions:
            raise Invalid(
                f"The action {name} is registered twice.",
                code="action_exists",
                advice="Give one another name.",
            )
        action = Action(
            name=name,
            function=function,
            queue=limits.valid_queue(options.get("queue", DEFAULT_QUEUE)),
            overrides=_overrides(options),
            isolation=_isolation(function, options.get("isolation")),
            priority=limits.valid_priority(options.get("priority", limits.PRIORITY_DEFAULT)),
            signature=Signature(function),
            breaker=Breaker.of(options.get("breaker")),
            quota=Quota.of(options.get("quota")),
        )
        self.actions[name] = action
        return action

    def include(self, other: App) -> None:
        """Also run the actions of another app, under their own names."""
        for name, action in other.actions.items():
            if name in self.actions:
                raise Invalid(
                    f"The action {name} is registered twice.", code="action_exists", advice="Give one another name."
                )
            self.actions[name] = action

    def client(self) -> Client:
        """`async with app.client() as client:`"""
        return Client(self.settings, self.actions)

    def sync_client(self) -> SyncClient:
        """The same for code without an event loop: `with app.sync_client() as client:`"""
        return SyncClient(self.settings, self.actions)


_RETRY_NAMES = {"enabled": "is_enabled"}
"""What settings and design documents call differently from the policy."""


def _overrides(options: dict[str, Any]) -> dict[str, Any]:
    """What an action says about its policy, checked here so that a mistake shows where it was made."""
    overrides = {_RETRY_NAMES.get(name, name): value for name, value in (options.get("retry") or {}).items()}
    if unknown := overrides.keys() - {field.name for field in fields(RetryPolicy)}:
        known = ", ".join(sorted(field.name for field in fields(RetryPolicy)))
        raise Invalid(
            f"retry= does not know {', '.join(sorted(unknown))}.", code="invalid_policy", advice=f"It knows {known}."
        )
    if rules := options.get("rules"):
        overrides["rules"] = tuple(rules)
    if (attempts := options.get("max_attempts")) is not None:
        overrides["max_retries"] = attempts - 1
    for name in ("max_retries", "max_losses", "memory_bytes_max"):
        if (value := options.get(name)) is not None:
            overrides[name] = value
    if (timeout := options.get("timeout")) is not None:
        overrides["timeout_seconds"] = seconds_of(timeout)
    replace(RetryPolicy(), **overrides).validated()
    return overrides


def _isolation(function: Callable[..., Any], asked: str | None) -> Isolation:
    is_async = inspect.iscoroutinefunction(function)
    if asked is None:
        return Isolation.COROUTINE if is_async else Isolation.THREAD
    try:
        isolation = Isolation(asked)
    except ValueError:
        choices = ", ".join(Isolation)
        raise Invalid(
            f"isolation={asked!r} is unknown.", code="invalid_action", advice=f"Choose one of {choices}."
        ) from None
    if isolation is Isolation.COROUTINE and not is_async:
        raise Invalid(
            f"{function.__qualname__} is not `async def`.",
            code="invalid_action",
            advice='Use isolation="thread".',
        )
    if isolation is Isolation.THREAD and is_async:
        raise Invalid(
            f"{function.__qualname__} is `async def` and cannot run in a plain thread.",
            code="invalid_action",
            advice='Use isolation="process", or make it a plain function.',
        )
    return isolation
