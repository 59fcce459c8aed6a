"""Executors: wrappers that an app may put around every attempt of its actions.

Without one, an attempt only calls the action's function. With one, an attempt runs the executor's coroutine. It may
call the function once, several times or never; what it returns or raises is the outcome of the attempt.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.execution.executor_calls import Attempt


class Executor(Protocol):
    """Runs attempts: `App("shop", executor=…)`. One object serves all attempts of a process, which run concurrently."""

    async def execute(self, attempt: Attempt) -> object:
        """Run one attempt. The return value is the task's output; an exception fails the attempt."""
        ...


def valid_executor(executor: Any) -> Executor | None:
    """Refuse an object that cannot run attempts, when the app is created."""
    if executor is None:
        return None
    execute = getattr(executor, "execute", None)
    if not inspect.iscoroutinefunction(execute) or not _takes_an_attempt(execute):
        raise Invalid(
            f"{executor!r:.80} is not an executor: it has no coroutine function `execute` that takes an attempt.",
            code="invalid_executor",
            advice="Pass an object with `async def execute(self, attempt)`; see docs/executors.md.",
        )
    return executor  # type: ignore[no-any-return]


def _takes_an_attempt(execute: Callable[..., Any]) -> bool:
    """Return whether it can be called with one argument; a class passed instead of its instance cannot."""
    try:
        inspect.signature(execute).bind(None)
    except TypeError:
        return False
    return True
