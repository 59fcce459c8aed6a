"""Attempts that run through an executor: the same on the worker's loop, in an isolated process, and in a replay.

The executor is a coroutine. The action's code runs where it would run without an executor, with the matching kind of
context. Nothing of an attempt runs on when its executor has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from holdfast.authoring.action import Action
from holdfast.authoring.context import Context
from holdfast.authoring.executor import Executor
from holdfast.execution.attempt_pool import Escaped

Call = Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[Any]]
"""Calls the action's function where its isolation says, with positional (the context) and keyword arguments."""


class Attempt:
    """One attempt as an executor sees it.

    `context` is its `Context`, also for actions that take none; here its `effect`, `step`, `heartbeat` and datasets are
    awaited, whatever the action is. `arguments` are its input by name, with the types that the function declares.
    """

    __slots__ = ("_begin", "_calls", "_is_over", "arguments", "context")

    def __init__(
        self, context: Context, arguments: dict[str, Any], begin: Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]
    ) -> None:
        self.context = context
        self.arguments = arguments
        self._begin = begin
        self._calls: set[asyncio.Task[Any]] = set()
        self._is_over = False

    async def call(self) -> Any:
        """Call the action's function with `arguments`, where its isolation says, and return its result.

        It may be called any number of times. Each call counts its effects from the first, as a retry would.
        """
        if self._is_over:
            raise RuntimeError("The attempt has ended; nothing more runs for it.")
        # A separate task: the caller may be cancelled, or be needed for other attempts.
        call = asyncio.create_task(self._begin(dict(self.arguments)), name="holdfast-call")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await call

    async def _end(self) -> None:
        """Cancel the calls still running, and wait for them to end, because a retry may follow."""
        self._is_over = True
        is_told = False
        while left := {call for call in self._calls if not call.done()}:
            for call in left:
                call.cancel()
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError:
                is_told = True
        if is_told:
            raise asyncio.CancelledError


async def executed(executor: Executor, attempt: Attempt) -> Any:
    """Run an attempt through its executor, until every call it started has ended."""
    try:
        return await executor.execute(attempt)
    finally:
        await attempt._end()


def through_executor(
    action: Action[..., Any], context: Context, arguments: dict[str, Any], call: Call, *, awaited: Context
) -> Coroutine[Any, Any, Any]:
    """Run an attempt through its action's executor. `context` is the action's own, `awaited` the executor's."""

    async def begin(call_arguments: dict[str, Any]) -> Any:
        signature, effect_runner = action.signature, context._effect_runner
        assert effect_runner is not None
        own = replace(context, _effect_runner=effect_runner.afresh())
        try:
            positional = signature.placed(own, call_arguments) if signature.wants_context else ()
            return await call(positional, call_arguments)
        except SystemExit as error:
            # The executor may have wrapped this call in a task, where SystemExit would end the whole loop.
            raise Escaped(error) from None

    assert action.executor is not None
    return executed(action.executor, Attempt(awaited, arguments, begin))
