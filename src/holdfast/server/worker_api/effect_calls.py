"""Effects, steps and notes of remote attempts. The attempt is identified by its lease, not by the request's claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from holdfast.engine.effects.gate import (
    AnswerEffect,
    GateDecision,
    OpenEffect,
    Sender,
    answer_effect,
    lease_lost,
    open_effect,
)
from holdfast.engine.effects.steps import StoredStep, keep_step, recall_steps
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Claimed
from holdfast.store.sql.queries import events as events_sql
from holdfast.store.sql.tasks import lease as lease_sql

Held = tuple[int, int, UUID]
"""Task, attempt, lease token."""


class RemoteEffects:
    """The effect store of remote workers, on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def open_effect(self, held: Held, wanted: OpenEffect) -> GateDecision:
        sender = await self._sender(held, f"send {wanted.name}")
        return await open_effect(self._engine.database, self._engine.catalog, sender, wanted)

    async def answer_effect(self, held: Held, answer: AnswerEffect) -> None:
        sender = await self._sender(held, "keep the answer of an effect")
        await answer_effect(self._engine.database, sender.claimed, answer)

    async def recall_steps(self, held: Held) -> list[StoredStep]:
        sender = await self._sender(held, "recall steps")
        return await recall_steps(self._engine.database, sender.claimed)

    async def keep_step(self, held: Held, step: StoredStep) -> None:
        sender = await self._sender(held, f"keep the step {step.name}")
        await keep_step(self._engine.database, sender.claimed, step)

    async def note(self, said: Sequence[tuple[Held, str, str]]) -> None:
        """Store notes (lease, kind, JSON) of attempts that hold their leases; later notes are dropped."""
        columns: list[list[Any]] = [
            [held[0] for held, _, _ in said],
            [held[1] for held, _, _ in said],
            [held[2] for held, _, _ in said],
            [kind for _, kind, _ in said],
            [detail for _, _, detail in said],
        ]
        if said:
            await events_sql.add_notes(self._engine.database, *columns)

    async def _sender(self, held: Held, what: str) -> Sender:
        """Return the attempt that holds this lease; raise `LeaseLost` if none does."""
        row = await lease_sql.lease_holder(self._engine.database, *held)
        task_id, attempt, token = held
        if row is None:
            nobody = Claimed(task_id, attempt, token, 0, 0, 0, 0, 0, None, None, b"", None)
            raise lease_lost(nobody, what)
        await self._engine.catalog.learn([row.lane_id], ())
        claimed = Claimed(
            task_id,
            attempt,
            token,
            row.lane_id,
            row.policy_id,
            row.retries,
            row.losses,
            row.tenant_id,
            row.run_id,
            row.node_no,
            b"",
            None,
        )
        return Sender(claimed=claimed, tenant=self._engine.catalog.lane(row.lane_id).tenant)
