"""The leases that a remote worker lists in an exchange: renew those, and find the ones it does not know of."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.engine.leases import Claimed
from holdfast.engine.lifecycle.runs.inputs import with_inputs
from holdfast.engine.lifecycle.tasks.claim import HELD_MAX, WorkerIdentity, held_by
from holdfast.engine.lifecycle.tasks.heartbeat import Renewals
from holdfast.server.worker_api.answers import Exchange
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.sql.tasks import lease as lease_sql


async def renew_listed(
    session: Session, worker_id: int, listed: Sequence[int] | None, *, lease_seconds: float
) -> Exchange:
    """Renew the leases of the listed tasks; return those that are lost, should stop, or are locked."""
    nothing = Exchange(tasks=[], accepted=0, refused=[], lost=[], canceled=[], is_draining=False, may_have_more=False)
    if not listed:
        return nothing
    found = Renewals.of(await lease_sql.renew_held(session, worker_id, list(listed), lease_seconds))
    return msgspec.structs.replace(
        nothing,
        lost=[task_id for task_id in listed if task_id not in found.renewed | found.busy],
        canceled=list(found.canceled),
        busy=list(found.busy),
    )


async def find_unlisted(
    session: Session,
    catalog: Catalog,
    identity: WorkerIdentity,
    listed: Sequence[int] | None,
    reported: Sequence[int],
    known: Sequence[tuple[int, UUID]] | None,
    *,
    lease_seconds: float,
) -> list[Claimed]:
    """Return leased tasks that the worker neither lists nor reports: the response that handed them out was lost."""
    if known is not None:
        found = await held_by(session, identity, known)
    elif listed is not None:
        rows = await lease_sql.held_unnamed(session, identity.worker_id, [*listed, *reported], lease_seconds, HELD_MAX)
        found = [Claimed.of(row) for row in rows]
    else:
        return []
    return await with_inputs(session, catalog, found)
