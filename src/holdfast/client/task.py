"""Handle on one task: wait for it, cancel it, explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.core.explain.task import Explanation
from holdfast.engine.effects.gate import EffectView
from holdfast.engine.queries.task_detail import TaskView

if TYPE_CHECKING:
    from holdfast.client.client import Client


R = TypeVar("R")


# A handle is never part of a reference cycle, so `gc=False` keeps thousands of them out of garbage collection.
class Task(msgspec.Struct, Generic[R], eq=False, gc=False):
    """A handle on one task; `R` is what its action returns."""

    _client: Client
    _number: int

    @property
    def task_id(self) -> str:
        return str(self._number)

    def __repr__(self) -> str:
        return f"Task({self.task_id!r})"

    async def result(self, timeout: str | float | None = None) -> R:
        """Wait for the output. Raises `TaskFailed` if it failed or was canceled, `WaitTimeout` if it takes longer."""
        output: Any = await self._client.result(self.task_id, timeout=timeout)
        return output  # type: ignore[no-any-return]

    async def state(self) -> str:
        """Return the current state: `queued`, `running`, `retrying`, `completed`, `failed`, `canceled` …"""
        return (await self.show()).state

    async def show(self) -> TaskView:
        """Return the task in full: its input, output, attempts and effects."""
        return await self._client.show(self.task_id)

    async def wait(self, timeout: str | float | None = None) -> str:
        """Wait for the end; return `completed`, `failed` or `canceled`."""
        return (await self._client.ending(self.task_id, timeout=timeout)).state

    async def cancel(self, reason: str = "") -> str:
        """Cancel it: returns `canceled` at once, or `canceling` while it is asked to stop."""
        return await self._client.cancel(self.task_id, reason=reason)

    async def why(self) -> Explanation:
        """Explain why the task is in its state and what would move it; `print()` shows the headline."""
        return await self._client.why(self.task_id)

    async def effects(self) -> list[EffectView]:
        """List the effects of the task's attempts and their results."""
        return await self._client.effects(self.task_id)
