"""Reports of remote workers, completed from the database with the policy and the retries used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from holdfast.core.tasks.outcome import Completed, Outcome
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Report
from holdfast.store.database import Session
from holdfast.store.sql.tasks import lease as lease_sql


class CompletedReport(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended, as its worker reports it, with its notes as (kind, JSON)."""

    task_id: int
    attempt: int
    lease_token: UUID
    outcome: Outcome
    notes: Sequence[tuple[str, str]] = ()
    input: bytes | None = None
    """The input of a node, for its dead letter."""


class Reports:
    """Completes reports so that `settle` can decide them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._any_policy_id = 0

    async def prepare(self) -> None:
        """Load the default policy, by which a late report is decided before the fence refuses it.

        Call it before a session is acquired.
        """
        if self._any_policy_id == 0:
            catalog = self._engine.catalog
            policy_id = await catalog.policy_id(self._engine.tenant_id, self._engine.policy_defaults.usual)
            await catalog.learn((), [policy_id])
            self._any_policy_id = policy_id

    async def of(self, session: Session, dones: Sequence[CompletedReport]) -> list[Report]:
        """Return reports for `settle`. A report whose attempt is no longer open is refused there by its token."""
        if not dones:
            return []
        known: dict[tuple[int, int], Any] = {}
        # A completion is decided by its lease alone; only breakers need its action.
        if self._engine.catalog.guarded or any(type(done.outcome) is not Completed for done in dones):
            rows = await lease_sql.open_attempts(session, [done.task_id for done in dones])
            known = {(row.task_id, row.attempt): row for row in rows}
            lanes = {row.lane_id for row in rows}
            await self._engine.catalog.learn(lanes, {row.policy_id for row in rows}, session=session)
            # Another server may have handed out the task, so this server may not know its breaker yet.
            self._engine.catalog.guarded |= {row.lane_id for row in rows if row.is_guarded}
        return [self._report(done, known.get((done.task_id, done.attempt))) for done in dones]

    def _report(self, done: CompletedReport, row: lease_sql.OpenAttemptsRow | None) -> Report:
        if row is None:
            lease = (done.task_id, done.attempt, done.lease_token)
            return Report(*lease, self._any_policy_id, 0, 0, done.outcome, notes=done.notes)
        return Report(
            done.task_id,
            done.attempt,
            done.lease_token,
            row.policy_id,
            row.retries,
            row.losses,
            done.outcome,
            input=done.input,
            lane_id=row.lane_id,
            notes=done.notes,
        )
