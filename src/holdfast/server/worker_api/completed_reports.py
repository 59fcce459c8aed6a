"""Reports of workers elsewhere, completed from the database: a policy to decide by, what of the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from holdfast.core.tasks.outcome import Completed, Outcome
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Report
from holdfast.store.database import Session
from holdfast.store.statements import sql

_OPEN_ATTEMPTS = sql("open_attempts")


class CompletedReport(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended, as its worker reports it, with what it said on the way as (kind, JSON)."""

    task_id: int
    attempt: int
    lease_token: UUID
    outcome: Outcome
    notes: Sequence[tuple[str, str]] = ()
    input: bytes | None = None
    """What a node was given, for its dead letter."""


class Reports:
    """Makes reports that `settle` can judge."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._any_policy_id = 0

    async def prepare(self) -> None:
        """A late report needs some policy to be decided by before the fence refuses it. Before any session is held."""
        if self._any_policy_id == 0:
            catalog = self._engine.catalog
            policy_id = await catalog.policy_id(self._engine.tenant_id, self._engine.policy_defaults.usual)
            await catalog.learn((), [policy_id])
            self._any_policy_id = policy_id

    async def of(self, session: Session, dones: Sequence[CompletedReport]) -> list[Report]:
        """Reports as `settle` judges them. One whose attempt is not open any more is refused there by its token."""
        if not dones:
            return []
        known: dict[tuple[int, int], Any] = {}
        # A completion is judged by its lease alone; only a breaker wants to know of which action it was.
        if self._engine.catalog.guarded or any(type(done.outcome) is not Completed for done in dones):
            rows = await session.fetch(_OPEN_ATTEMPTS, [done.task_id for done in dones])
            known = {(row["task_id"], row["attempt"]): row for row in rows}
            lanes = {row["lane_id"] for row in rows}
            await self._engine.catalog.learn(lanes, {row["policy_id"] for row in rows}, session=session)
            # Another server may have handed the task out, so what its claims learned of breakers is not known here.
            self._engine.catalog.guarded |= {row["lane_id"] for row in rows if row["is_guarded"]}
        return [self._report(done, known.get((done.task_id, done.attempt))) for done in dones]

    def _report(self, done: CompletedReport, row: Any) -> Report:
        if row is None:
            lease = (done.task_id, done.attempt, done.lease_token)
            return Report(*lease, self._any_policy_id, 0, 0, done.outcome, notes=done.notes)
        return Report(
            done.task_id,
            done.attempt,
            done.lease_token,
            row["policy_id"],
            row["retries"],
            row["losses"],
            done.outcome,
            input=done.input,
            lane_id=row["lane_id"],
            notes=done.notes,
        )
