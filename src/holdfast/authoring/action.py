"""Actions: named functions with their policy, callable directly and enqueueable by name.

The signature is read once, at decoration: accepted names, required names, and types. Enqueueing checks names before
anything is stored. Running decodes and checks types, so bad input fails only its own task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from holdfast.authoring.action_signature import Signature
from holdfast.authoring.executor import Executor
from holdfast.authoring.flow.call import Callee, NodeCall, Placing, called
from holdfast.authoring.flow.trace import current_trace
from holdfast.codec.clock import machine_now
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.action_rules import ActionRules
from holdfast.core.tasks.policy import PolicyDefaults
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.values import bounds
from holdfast.core.values.duration import seconds_of

if TYPE_CHECKING:
    from holdfast.authoring.context import Context

P = ParamSpec("P")
R = TypeVar("R")


class Isolation(StrEnum):
    """Where an action's code runs inside a worker."""

    COROUTINE = "coroutine"
    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of one enqueue that override those of its action. None keeps the action's value."""

    queue: str | None = None
    priority: int | None = None
    delay_seconds: float = 0.0
    key: str | None = None
    tags: tuple[str, ...] = ()
    policy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Action(Placing, Generic[P, R]):
    """One registered function.

    Calling it runs its function directly; inside a flow a call adds a node; the client enqueues it.
    """

    name: str
    function: Callable[..., Any]
    queue: str
    overrides: Mapping[str, Any]
    """Fields in which this action differs from the default policy."""
    isolation: Isolation
    priority: int
    signature: Signature
    breaker: Breaker | None = None
    quota: Quota | None = None
    launcher: str | None = None
    """The launcher that starts a worker for each of its tasks; None leaves them to running workers."""
    executor: Executor | None = None
    """The app's executor, which wraps each attempt."""
    now: Callable[[], datetime] = machine_now
    """The app's clock."""

    def policy(self, defaults: PolicyDefaults) -> RetryPolicy:
        """Return the policy of this action, based on `defaults` from settings, which are not read at import."""
        policy = defaults.usual if self.launcher is None else defaults.launched
        return replace(policy, **self.overrides).validated()

    def rules(self, defaults: PolicyDefaults) -> ActionRules:
        """Return the defaults for nodes of this action that their flow does not override."""
        return ActionRules(queue=self.queue, priority=self.priority, policy=self.policy(defaults))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if current_trace() is not None:
            return called(self.callee(), args, kwargs)  # type: ignore[no-any-return]
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]

    def map(self, **inputs: Any) -> Any:
        """Inside a flow, add a node that runs once per item of the list among its inputs."""
        return NodeCall(self.callee()).map(**inputs)

    def callee(self) -> Callee:
        signature = self.signature
        return Callee(NodeKind.TASK, self.name, self.name.rpartition(".")[2], signature.names, signature.ports)

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: str | float | None = None,
        key: str | None = None,
        tags: list[str] | tuple[str, ...] = (),
        max_retries: int | None = None,
        max_attempts: int | None = None,
        timeout: str | float | None = None,
    ) -> BoundAction[P, R]:
        """Return this action with other options for the next enqueue."""
        policy: dict[str, Any] = {}
        if max_attempts is not None:
            policy["max_retries"] = retries_within(max_attempts)
        if max_retries is not None:
            policy["max_retries"] = max_retries
        if timeout is not None:
            policy["timeout_seconds"] = seconds_of(timeout)
        options = TaskOptions(
            queue=queue,
            priority=priority,
            delay_seconds=0.0 if delay is None else bounds.valid_delay(delay),
            key=key,
            tags=bounds.valid_tags(tags),
            policy=policy or None,
        )
        return BoundAction(action=self, options=options)


if TYPE_CHECKING:

    class AsyncAction(Action[P, R]):
        """For type checkers: an action of an `async def`.

        Inside a flow a call returns a reference to its result, elsewhere it is awaited; `R` is the result type in both
        cases.
        """

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

else:
    AsyncAction = Action


class ActionDecorator(Protocol):
    """For type checkers: the result of `@app.action(…)`. A leading context parameter is not an input."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> AsyncAction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncAction[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Action[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Action[P, R]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAction(Generic[P, R]):
    """An action together with the options of one enqueue."""

    action: Action[P, R]
    options: TaskOptions

    def policy(self, defaults: PolicyDefaults) -> RetryPolicy:
        """Return the policy of this task. Precedence, weakest first: defaults, action, task."""
        policy = self.action.policy(defaults)
        return policy if self.options.policy is None else replace(policy, **self.options.policy).validated()


def in_process(action: Action[P, R]) -> Action[P, R]:
    """Return the same action for execution in the calling process, on the event loop or in a thread."""
    if action.isolation is not Isolation.PROCESS:
        return action
    is_async = inspect.iscoroutinefunction(action.function)
    return replace(action, isolation=Isolation.COROUTINE if is_async else Isolation.THREAD)


def retries_within(max_attempts: Any) -> Any:
    """Convert `max_attempts` to `max_retries`; a value that is not a number is left to the policy's own check."""
    return max_attempts - 1 if isinstance(max_attempts, int | float) else max_attempts
