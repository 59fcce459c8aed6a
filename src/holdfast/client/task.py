"""A handle on one task: wait for it, stop it, ask about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.core.explain.task import Explanation
from holdfast.engine.effects.gate import EffectView
from holdfast.engine.queries.task_detail import TaskView

if TYPE_CHECKING:
    from holdfast.client.client import Client


R = TypeVar("R")


# Nothing that a handle refers to refers to it: the thousands of a batch need not be work for the collector.
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
        found: Any = await self._client.result(self.task_id, timeout=timeout)
        return found  # type: ignore[no-any-return]

    async def state(self) -> str:
        """Where it stands now: `queued`, `running`, `retrying`, `completed`, `failed`, `canceled` …"""
        return (await self.show()).state

    async def show(self) -> TaskView:
        """The task in full: its input, output, attempts and effects."""
        return await self._client.show(self.task_id)

    async def wait(self, timeout: str | float | None = None) -> str:
        """Wait for the end and say which: `completed`, `failed` or `canceled`."""
        return (await self._client.ending(self.task_id, timeout=timeout)).state

    async def cancel(self, reason: str = "") -> str:
        """Cancel it: `canceled` at once, or `canceling` while it is asked to stop."""
        return await self._client.cancel(self.task_id, reason=reason)

    async def why(self) -> Explanation:
        """Explain why the task is where it is and what would move it; `print()` shows the headline."""
        return await self._client.why(self.task_id)

    async def effects(self) -> list[EffectView]:
        """What the task's attempts did outside, and what became of it."""
        return await self._client.effects(self.task_id)
