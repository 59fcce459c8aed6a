"""Attach: a task is reserved for a worker that is being launched, which swaps its one-shot token for a lease.

A reservation is the open attempt: unique per (task, attempt), outside the claim index, counted by limits. One that
nobody attaches to in time is found by the reaper and is lost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.dispatcher.breakers import trial_rooms
from holdfast.dispatcher.claim import WorkerIdentity
from holdfast.dispatcher.leases import Claimed
from holdfast.errors import LeaseLost
from holdfast.store.database import Session
from holdfast.store.statements import sql

_RESERVE = sql("reserve")
_ATTACH = sql("attach")
_WHY_NOT = sql("why_not_claimable")


class Reservation(msgspec.Struct, frozen=True):
    """One launch of a worker for one attempt. `lease_token` works once, in `attach`."""

    task_id: int
    attempt: int
    lease_token: Any


async def reserve(session: Session, task_id: int, *, launch_seconds: float) -> Reservation | None:
    """Set a queued task aside; None if it is not queued any more, its queue is paused or its action's breaker open."""
    found = await session.fetchrow(_WHY_NOT, task_id, 0)
    if found is None or not found["is_on_trial"]:
        row = await session.fetchrow(_RESERVE, task_id, launch_seconds, 0)
        return None if row is None else Reservation(*row)
    if not session.is_in_transaction():
        async with session.transaction():
            return await reserve(session, task_id, launch_seconds=launch_seconds)
    rooms = await trial_rooms(session, [found["breaker_id"]])
    granted = found["breaker_id"] if rooms[found["breaker_id"]] else 0
    row = await session.fetchrow(_RESERVE, task_id, launch_seconds, granted)
    return None if row is None else Reservation(*row)


async def attach(session: Session, identity: WorkerIdentity, reservation: Reservation) -> Claimed:
    """Turn a reservation into a lease; `LeaseLost` if it was used, expired, or never this worker's to use."""
    row = await session.fetchrow(
        _ATTACH,
        reservation.task_id,
        reservation.attempt,
        reservation.lease_token,
        identity.worker_id,
        identity.lease_seconds,
    )
    if row is None:
        raise LeaseLost(
            f"The reservation of attempt {reservation.attempt} of task {reservation.task_id} is no longer valid.",
            advice="Do not run the task; another attempt will be launched.",
        )
    return Claimed(*row)
