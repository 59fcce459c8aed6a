"""The executor: what an app may put around every attempt of its actions.

Without one an action's function is called and that is all. With one, its coroutine is what an attempt runs: it may call
the function, once, often or never, and what it returns or raises is how the attempt ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.execution.executor_calls import Attempt


class Executor(Protocol):
    """Runs attempts: `App("shop", executor=…)`. One for all attempts of a process, which run side by side."""

    async def execute(self, attempt: Attempt) -> object:
        """Run one attempt. What this returns is the task's output; what it raises fails the attempt."""
        ...


def valid_executor(given: Any) -> Executor | None:
    """Refuse where it is written what could run no attempt."""
    if given is None:
        return None
    execute = getattr(given, "execute", None)
    if not inspect.iscoroutinefunction(execute) or not _takes_an_attempt(execute):
        raise Invalid(
            f"{given!r:.80} is no executor: it has no coroutine function `execute` that takes an attempt.",
            code="invalid_executor",
            advice="Pass an object with `async def execute(self, attempt)`; see docs/executors.md.",
        )
    return given  # type: ignore[no-any-return]


def _takes_an_attempt(execute: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument: a class in place of its instance cannot."""
    try:
        inspect.signature(execute).bind(None)
    except TypeError:
        return False
    return True
