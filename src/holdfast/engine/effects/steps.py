"""Steps: stored results of pure work that later attempts of the same generation reuse."""

from __future__ import annotations

import msgspec

from holdfast.engine.effects.gate import insistently, lease_lost
from holdfast.engine.leases import Claimed
from holdfast.store.database import Database
from holdfast.store.sql.effects import effects as effects_sql


class RecallSteps(msgspec.Struct, frozen=True, tag=True):
    """Request the steps that earlier attempts stored."""


class StoredStep(msgspec.Struct, frozen=True):
    """One stored result, by name and arguments; `digest` identifies the arguments."""

    name: str
    digest: bytes
    output: bytes


class Steps(msgspec.Struct, frozen=True, tag=True):
    """The steps that earlier attempts stored."""

    steps: list[StoredStep]


class KeepStep(msgspec.Struct, frozen=True, tag=True):
    """Store one result."""

    step: StoredStep


async def recall_steps(database: Database, claimed: Claimed) -> list[StoredStep]:
    """Return the steps that earlier attempts of this generation stored.

    A first attempt has none and makes no query.
    """
    if claimed.attempt == 1:
        return []
    rows = await effects_sql.recall_steps(database, claimed.task_id, claimed.lease_token)
    return [StoredStep(row.name, row.digest, row.output) for row in rows]


async def keep_step(database: Database, claimed: Claimed, step: StoredStep) -> None:
    """Store a result for later attempts; `LeaseLost` without the current lease."""
    lease = (claimed.task_id, claimed.attempt, claimed.lease_token, claimed.tenant_id)
    row = await insistently(lambda: effects_sql.store_step(database, *lease, step.name, step.digest, step.output))
    if not row.is_held:
        raise lease_lost(claimed, f"keep the step {step.name}")
