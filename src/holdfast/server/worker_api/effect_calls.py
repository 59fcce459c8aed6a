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

LeaseKey = tuple[int, int, UUID]
"""Task, attempt, lease token."""


class RemoteEffects:
    """The effect store of remote workers, on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def open_effect(self, lease: LeaseKey, wanted: OpenEffect) -> GateDecision:
        sender = await self._sender(lease, f"send {wanted.name}")
        return await open_effect(self._engine.database, self._engine.catalog, sender, wanted)

    async def answer_effect(self, lease: LeaseKey, answer: AnswerEffect) -> None:
        sender = await self._sender(lease, "keep the answer of an effect")
        await answer_effect(self._engine.database, sender.claimed, answer)

    async def recall_steps(self, lease: LeaseKey) -> list[StoredStep]:
        sender = await self._sender(lease, "recall steps")
        return await recall_steps(self._engine.database, sender.claimed)

    async def keep_step(self, lease: LeaseKey, step: StoredStep) -> None:
        sender = await self._sender(lease, f"keep the step {step.name}")
        await keep_step(self._engine.database, sender.claimed, step)

    async def note(self, said: Sequence[tuple[LeaseKey, str, str]]) -> None:
        """Store notes (lease, kind, JSON) of attempts that hold their leases; later notes are dropped."""
        columns: list[list[Any]] = [
            [lease[0] for lease, _, _ in said],
            [lease[1] for lease, _, _ in said],
            [lease[2] for lease, _, _ in said],
            [kind for _, kind, _ in said],
            [detail for _, _, detail in said],
        ]
        if said:
            await events_sql.add_notes(self._engine.database, *columns)

    async def _sender(self, lease: LeaseKey, what: str) -> Sender:
        """Return the attempt that holds this lease; raise `LeaseLost` if none does."""
        row = await lease_sql.lease_holder(self._engine.database, *lease)
        task_id, attempt, token = lease
        if row is None:
            unheld = Claimed(task_id, attempt, token, 0, 0, 0, 0, 0, None, None, b"", None)
            raise lease_lost(unheld, what)
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
