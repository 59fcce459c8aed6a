"""Launch workers: slot, reservation, launch, in this order, and the way back from each; the writes of the launching
loop.

A slot is taken before the reservation, so a full launcher reserves nothing; a launcher that loses the reservation frees
the slot. A failed launch also takes the reservation back: no attempt was made, so the same attempt is launched again.
Each step is a transaction of its own, and the rows show what a process that died between two steps left.
"""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.launching import (
    ERROR_CHARACTERS_MAX,
    LAUNCH_FAILED_CODE,
    LAUNCHES_MAX,
    relaunch_seconds,
    token_hash,
)
from holdfast.core.tasks.classify import RetryReason, Rule
from holdfast.core.tasks.failure import LOST_CODE, Failure
from holdfast.core.tasks.outcome import Failed, Lost, Outcome
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.launching.attach import LAUNCHING_SECONDS, reserve
from holdfast.engine.leases import NOTHING_SETTLED, Report, Settled
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.workers import launches as launches_sql

_FINAL = Rule(code=LAUNCH_FAILED_CODE, reason=RetryReason.LAUNCH_FAILED, retry=False)

SLOT_SECONDS = 30.0
"""How long a slot is reserved while its reservation is being made."""
LAUNCH_BATCH = 50
OVER_BATCH = 100


class Launchable(msgspec.Struct, frozen=True):
    """A queued task whose worker is to be launched, and its next attempt."""

    task_id: int
    attempt: int
    tenant_id: int
    launcher: str
    action: str
    queue: str
    tenant: str


class Launch(msgspec.Struct, frozen=True):
    """A reserved attempt and what its launch needs: the slot's holder, and the token for the worker."""

    of: Launchable
    holder: Any
    lease_token: Any
    token: str


class EndedLaunch(msgspec.Struct, frozen=True):
    """A launch whose attempt has ended; `is_reported` if its worker reported the end itself."""

    task_id: int
    attempt: int
    launcher: str
    handle: str | None
    state: str
    is_reported: bool
    age_seconds: float


class OpenLaunch(msgspec.Struct, frozen=True):
    """A launch to which no worker has attached yet."""

    task_id: int
    attempt: int
    launcher: str
    handle: str
    lease_token: Any
    age_seconds: float


async def find_launchable(database: Database, *, limit: int = LAUNCH_BATCH) -> list[Launchable]:
    """Return the next tasks to launch a worker for, at most `limit` per lane."""
    return [Launchable(*row) for row in await launches_sql.launchable(database, limit)]


async def take_slot(database: Database, one: Launchable, *, slots: int) -> uuid.UUID | None:
    """Take a slot for this launch. Return its holder, or None if all slots are taken."""
    holder = uuid.uuid4()
    # Two concurrent launchers may see the same free slot; the second tries again, at most once per slot.
    for _ in range(slots):
        taken = await launches_sql.take_slot(
            database, one.launcher, slots, one.tenant_id, one.task_id, one.attempt, holder, SLOT_SECONDS
        )
        if taken:
            return holder
    return None


async def free_slot(database: Database, holder: uuid.UUID) -> None:
    await launches_sql.free_slot(database, holder)


async def reserve_launch(
    database: Database, one: Launchable, holder: uuid.UUID, *, launch_seconds: float
) -> Launch | None:
    """Reserve the attempt, unique per (task, attempt). If another launcher was first, free the slot and return None."""
    async with database.transaction() as session:
        made = await reserve(
            session,
            one.task_id,
            launch_seconds=launch_seconds,
            attempt=one.attempt,
            launcher=one.launcher,
            holder=holder,
        )
    if made is None:
        await free_slot(database, holder)
        return None
    return Launch(of=one, holder=holder, lease_token=made.lease_token, token=made.token)


async def launched(database: Database, launch: Launch, handle: str) -> None:
    """Store the platform's handle of the launch."""
    await launches_sql.launched(database, launch.of.task_id, launch.of.attempt, launch.holder, handle)


async def launch_failed(database: Database, catalog: Catalog, launch: Launch, error: str) -> Settled:
    """Take a failed launch back: free slot and reservation; the same attempt is launched again later, or fails.

    Does nothing if the worker attached all the same, the task was canceled, or the reservation has ended.
    """
    one = launch.of
    async with database.transaction() as session:
        row = await launches_sql.lock_reservation(session, one.task_id, one.attempt, launch.lease_token)
        if row is None:
            return NOTHING_SETTLED
        text = error[:ERROR_CHARACTERS_MAX]
        failures = await launches_sql.fail_launch(session, one.task_id, one.attempt, launch.holder, text)
        if failures is None:
            return NOTHING_SETTLED
        if failures < LAUNCHES_MAX:
            delay = relaunch_seconds(failures, jitter=random.random())
            await launches_sql.unreserve(session, one.task_id, one.attempt, launch.lease_token, delay)
            return NOTHING_SETTLED
        message = f"No worker could be launched in {failures} tries: {text}"
        return await _fail(session, catalog, row, Failure(code=LAUNCH_FAILED_CODE, message=message))


async def _fail(session: Session, catalog: Catalog, row: launches_sql.LockReservationRow, failure: Failure) -> Settled:
    """Fail the task for good: the launches were its retries. No breaker counts it, because the action never ran."""
    await catalog.learn((), [row.policy_id], session=session)
    policy = replace(catalog.policy(row.policy_id), rules=(_FINAL,))
    return await settle(session, catalog, [_report(row, Failed(failure), policy)])


def _report(row: launches_sql.LockReservationRow, outcome: Outcome, policy: RetryPolicy | None = None) -> Report:
    lease = (row.task_id, row.attempt, row.lease_token)
    return Report(*lease, row.policy_id, row.retries, row.losses, outcome, policy=policy)


async def adopt_launch(database: Database, launchers: Sequence[str]) -> Launch | None:
    """Take over one launch that another launcher began and did not finish, if there is one."""
    token = secrets.token_urlsafe(32)
    row = await launches_sql.adopt_launch(database, list(launchers), token_hash(token), LAUNCHING_SECONDS)
    if row is None:
        return None
    one = Launchable(
        row.task_id,
        row.attempt,
        row.tenant_id,
        row.launcher,
        row.action,
        row.queue,
        row.tenant,
    )
    return Launch(of=one, holder=row.holder, lease_token=row.lease_token, token=token)


async def open_launches(database: Database, launcher: str, *, asked_seconds: float) -> list[OpenLaunch]:
    """Return launches to which no worker attached and whose platform was not queried for a while."""
    rows = await launches_sql.launches_to_check(database, launcher, asked_seconds, OVER_BATCH)
    return [OpenLaunch(*row) for row in rows]


async def lose_launch(database: Database, catalog: Catalog, one: OpenLaunch, detail: str) -> Settled:
    """Settle a launch as lost, because the platform reports that its worker stopped without attaching."""
    async with database.transaction() as session:
        row = await launches_sql.lock_reservation(session, one.task_id, one.attempt, one.lease_token)
        if row is None:
            return NOTHING_SETTLED
        await catalog.learn((), [row.policy_id], session=session)
        outcome = Lost(Failure(code=LOST_CODE, message=f"The launched worker stopped without attaching: {detail}"))
        report = _report(row, outcome)
        return await settle(session, catalog, [report])


async def over_launches(database: Database, launcher: str) -> list[EndedLaunch]:
    """Return launches whose attempt has ended: their workers are to be stopped and the launches deleted."""
    return [EndedLaunch(*row) for row in await launches_sql.ended_launches(database, launcher, OVER_BATCH)]


async def put_back_launch(database: Database, one: EndedLaunch) -> None:
    """Move a launch that could not be stopped now behind the others."""
    await launches_sql.put_back_launch(database, one.task_id, one.attempt)


async def forget_launch(database: Database, one: EndedLaunch) -> None:
    await launches_sql.delete_launch(database, one.task_id, one.attempt)


async def tidy_launches(database: Database) -> None:
    """Delete slots without a holder and expired tokens."""
    await launches_sql.free_slots(database)
    await launches_sql.delete_launch_tokens(database)


async def launchers_wanted(database: Database) -> list[str]:
    """Return every launcher that an action names."""
    return [row[0] for row in await launches_sql.launchers_wanted(database)]


async def declare_launcher(
    database: Database, name: str, *, kind: str, slots: int, tenants: Sequence[str], actions: Sequence[str]
) -> None:
    """Register a launcher of this process, and the tenants and actions it serves; none named means all."""
    await launches_sql.declare_launcher(database, name, kind, slots, list(tenants), sorted(actions))


class LaunchView(msgspec.Struct, frozen=True):
    """One launch, for display."""

    task_id: str
    attempt: int
    launcher: str
    action: str | None
    state: str
    handle: str | None
    failures: int
    error: str
    created_at: datetime
    launched_at: datetime | None
    attached_at: datetime | None
    slot: int | None
    next_at: datetime | None


_STATES = {"p": "launching", "l": "launched", "a": "attached", "f": "failed"}


async def list_launches(database: Database, tenant_id: int, *, limit: int) -> list[LaunchView]:
    """Return the launches in progress and those whose attempt has not ended."""
    rows = await launches_sql.list_launches(database, tenant_id, limit)
    return [
        LaunchView(
            task_id=str(row.task_id),
            attempt=row.attempt,
            launcher=row.launcher,
            action=row.action,
            state=_STATES[row.state],
            handle=row.handle,
            failures=row.failures,
            error=row.error,
            created_at=row.created_at,
            launched_at=row.launched_at,
            attached_at=row.attached_at,
            slot=row.slot,
            next_at=row.due_at if row.state == "f" else None,
        )
        for row in rows
    ]
