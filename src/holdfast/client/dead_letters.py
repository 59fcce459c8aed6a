"""Client interface of dead letters: `client.dead`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.reinject import Reinjected, reinject_once
from holdfast.engine.queries.dead_letters import DeadLetterView, GroupView, dead_groups, list_letters

if TYPE_CHECKING:
    from holdfast.client.client import Client


class DeadLetters:
    """Tasks that failed for good: inspect them, run them again, or ignore them."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    async def groups(self) -> list[GroupView]:
        """List unresolved dead letters by fingerprint, the largest group first."""
        engine = self._client.engine
        return await dead_groups(engine.database, engine.tenant_id)

    async def list(self, *, group: str | None = None, limit: int = 50) -> list[DeadLetterView]:
        """List the newest dead letters, of one group or all."""
        engine = self._client.engine
        return await list_letters(engine.database, engine.tenant_id, fingerprint=group, limit=limit)

    async def redrive(
        self, task_id: str, *, reason: str, dispatches: int = DISPATCHES_MAX, actor: str = "client"
    ) -> int:
        """Run a dead task again as a new generation; return the number of the attempt that will run.

        A task that fails for good again is dispatched again with growing pauses, `dispatches` times in all.
        """
        engine, number = self._client.engine, self._client.number_of(task_id)
        done = await dead_letter_commands.redrive(
            engine, engine.tenant_id, number, actor=actor, reason=reason, dispatches=dispatches
        )
        return done.attempt

    async def redrive_group(
        self, fingerprint: str, *, reason: str, dispatches: int = DISPATCHES_MAX, actor: str = "client"
    ) -> int:
        """Request a retry of every open dead letter of a group, each at most `dispatches` times; return how many."""
        engine = self._client.engine
        moved = await dead_letter_commands.redrive_group(
            engine, engine.tenant_id, fingerprint, actor=actor, reason=reason, dispatches=dispatches
        )
        return moved.letters

    async def ignore(self, task_id: str, *, reason: str, actor: str = "client") -> int:
        """Ignore the open dead letters of a task; return how many there were."""
        engine, number = self._client.engine, self._client.number_of(task_id)
        moved = await dead_letter_commands.ignore(engine, engine.tenant_id, task_id=number, actor=actor, reason=reason)
        return moved.letters

    async def reinject_once(self, worker_id: str, visibility_timeout_seconds: float) -> Reinjected:
        """Requeue the oldest dead task, as a consumer of a dead-letter queue would."""
        return await reinject_once(self._client.engine, worker_id, visibility_timeout_seconds)
