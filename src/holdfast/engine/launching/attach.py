"""Attach: a task is reserved for a worker that is being launched, which exchanges its one-time token for a lease.

A reservation is the open attempt: unique per (task, attempt), outside the claim index, counted by limits. The reaper
ends a reservation to which no worker attaches in time, as a loss. Only a hash of the token is stored, until the worker
attaches.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from holdfast.core.launching import TOKEN_SECONDS, token_hash
from holdfast.engine.leases import Claimed
from holdfast.engine.lifecycle.tasks.claim import WorkerIdentity, has_room, held_task, spend_room, tally_starts
from holdfast.engine.limits.breakers import trial_rooms
from holdfast.errors import LeaseLost
from holdfast.store.database import Session
from holdfast.store.sql.tasks import claim as claim_sql
from holdfast.store.sql.tasks import lease as lease_sql
from holdfast.store.sql.workers import launches as launches_sql

LAUNCHING_SECONDS = 60.0
"""How long the launcher that made a reservation may launch exclusively; then another launcher may adopt it."""


class Reservation(msgspec.Struct, frozen=True):
    """One launch of a worker for one attempt. `attach` takes its `token` once; `lease_token` names the reservation."""

    task_id: int
    attempt: int
    lease_token: Any
    token: str = ""


async def reserve(
    session: Session,
    task_id: int,
    *,
    launch_seconds: float,
    attempt: int | None = None,
    launcher: str = "",
    holder: Any = None,
) -> Reservation | None:
    """Reserve a queued task. Return None if it is no longer queued, or is blocked (paused, limited, its breaker open).

    With `attempt`, reserve only if that attempt is next, so that a caller with old data reserves nothing newer.
    """
    if not session.is_in_transaction():
        async with session.transaction():
            return await reserve(
                session, task_id, launch_seconds=launch_seconds, attempt=attempt, launcher=launcher, holder=holder
            )
    found = await claim_sql.why_not_claimable(session, task_id, 0, [], None)
    if found is None or found.state != "q" or not await has_room(session, found):
        return None
    granted = 0
    if found.breaker_id is not None and found.is_on_trial:
        rooms = await trial_rooms(session, [found.breaker_id])
        granted = found.breaker_id if rooms.get(found.breaker_id) else 0
    token = secrets.token_urlsafe(32)
    # The token must stay valid at least as long as a worker may take to attach.
    token_seconds = max(TOKEN_SECONDS, launch_seconds)
    of_launch = (attempt, launcher, token_hash(token), token_seconds, holder, LAUNCHING_SECONDS)
    row = await lease_sql.reserve(session, task_id, launch_seconds, granted, *of_launch)
    if row is None:
        return None
    if found.is_shared and row.is_first:
        await tally_starts(session, [row.lane_id])
    await spend_room(session, found)
    return Reservation(row.task_id, row.attempt, row.lease_token, token)


async def attach(session: Session, identity: WorkerIdentity, task_id: int, attempt: int, token: str) -> Claimed:
    """Turn a reservation into a lease; `LeaseLost` if its token was used or is invalid, or it has expired.

    A worker that already has the lease of this attempt gets it again: it asks because the response was lost. `is_early`
    in the error's fields means that the launch failed and is due again with the same attempt, so the worker may wait.
    """
    hashed = token_hash(token)
    row = await lease_sql.attach(session, task_id, attempt, hashed, identity.worker_id, identity.lease_seconds)
    if row is not None:
        return Claimed.of(row)
    held = await held_task(session, identity, task_id)
    if held is not None and held.attempt == attempt:
        return held
    found = await launches_sql.read_attach(session, task_id, attempt, hashed)
    is_early = (
        found is not None
        and bool(found.is_known)
        and found.launch_state == "f"
        and found.state in ("q", "w")
        and found.attempt == attempt - 1
    )
    raise LeaseLost(
        f"Attempt {attempt} of task {task_id} has no valid reservation for this token.",
        advice="Attach again later: this launch is due again." if is_early else "Do not run the task.",
        is_early=is_early,
    )
