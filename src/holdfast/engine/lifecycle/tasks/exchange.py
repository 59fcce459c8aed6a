"""Exchange: settle ended attempts and claim the next tasks, in one transaction and one commit.

It is safe to repeat. A report that was settled before its response was lost is found on record, and a claim whose
response was lost is found again through the worker's leases. A report that cannot be settled is refused alone; its
lease expires and the reaper decides. When a lock is not available in time, nothing is settled, and the leases are
renewed before the exchange is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from holdfast.engine.leases import NOTHING_SETTLED, Claimed, Report, Settled
from holdfast.engine.lifecycle.runs.inputs import readable, with_inputs
from holdfast.engine.lifecycle.runs.outputs import returned_now, warm_outputs
from holdfast.engine.lifecycle.runs.release import warm_release
from holdfast.engine.lifecycle.tasks.claim import Claimer, warm_claim
from holdfast.engine.lifecycle.tasks.heartbeat import keep_leases
from holdfast.engine.lifecycle.tasks.settle import settle, warm_settle
from holdfast.engine.lifecycle.tasks.settle_one_by_one import UNSETTLEABLE_ERRORS, settle_one_by_one
from holdfast.engine.notifications import Notifications
from holdfast.store.catalog import Catalog
from holdfast.store.database import LOCK_TIMEOUT, Session

Start = Callable[[Sequence[Claimed]], Awaitable[None]]
Tell = Callable[[Notifications], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResult:
    settled: Settled
    claimed: Sequence[Claimed]


async def warm(session: Session) -> None:
    """Make the server plan a worker's statements before the first task needs them, by running them on no rows."""
    await warm_claim(session)
    await warm_settle(session)
    await warm_release(session)
    await warm_outputs(session)


async def exchange(
    session: Session,
    catalog: Catalog,
    claimer: Claimer,
    reports: Sequence[Report],
    want: int,
    *,
    now: float,
    tell: Tell | None = None,
    start: Start | None = None,
) -> ExchangeResult:
    """Settle `reports`, then claim at most `want` tasks.

    `tell` gets the notifications after the commit and before the inputs of claimed tasks are read, because other
    workers wait for the tasks released here. `start` gets the tasks that need no further reading while the inputs of
    the others are read, so that loading a very large flow for the first time delays no other task. The result has the
    remaining tasks.
    """
    if not reports and want == 0:
        return ExchangeResult(settled=NOTHING_SETTLED, claimed=[])
    if not reports:
        # A claim alone is one statement: without a transaction around it, an idle worker saves two round trips.
        found = await claimer.claim(session, want, now=now)
        catalog.guarded |= claimer.guarded
        return ExchangeResult(settled=NOTHING_SETTLED, claimed=await _ready(session, catalog, found, start))
    claimed: list[Claimed] = []

    async def claim_known() -> None:
        claimed.extend(await claimer.claim_known(session, want, now=now))

    # When tasks are scarce, the ones to claim are released by this transaction; an earlier claim would find none.
    before_release = claim_known if claimer.has_plenty else None
    is_to_claim = False
    try:
        async with session.transaction():
            settled = await settle(session, catalog, reports, before_release=before_release)
            await claimer.count_starts(session, claimed)
            if settled.notifications.lanes:
                claimer.hear(settled.notifications.lanes, now=now)
            is_to_claim = want > len(claimed) and bool(settled.notifications.lanes or not claimed)
            if is_to_claim and settled.notifications.released <= want:
                claimed += await claimer.claim(session, want - len(claimed), now=now)
                is_to_claim = False
    except LOCK_TIMEOUT:
        await keep_leases(session, reports, lease_seconds=claimer.identity.lease_seconds)
        raise
    except UNSETTLEABLE_ERRORS:
        claimed, settled, is_to_claim = [], await settle_one_by_one(session, catalog, reports), False
    settled = settled.less(claimed)
    if tell is not None and settled.notifications:
        tell(settled.notifications)
        # Yield to the event loop, so that the notification is sent now and not after the rest of this function.
        await asyncio.sleep(0)
    if is_to_claim:
        # More tasks were released than this worker takes: commit first, so that other workers need not wait for its
        # claim.
        claimed += await claimer.claim(session, want - len(claimed), now=now)
    catalog.guarded |= claimer.guarded
    return ExchangeResult(settled=settled, claimed=await _ready(session, catalog, claimed, start, reports, settled))


async def _ready(
    session: Session,
    catalog: Catalog,
    claimed: Sequence[Claimed],
    start: Start | None,
    reports: Sequence[Report] = (),
    settled: Settled = NOTHING_SETTLED,
) -> Sequence[Claimed]:
    """Return the claimed tasks with their inputs, except those that `start` already got."""
    plain = [one for one in claimed if one.run_id is None]
    if len(plain) == len(claimed):
        return await readable(session, catalog, plain)
    if plain and start is not None:
        await start(await readable(session, catalog, plain))
        claimed = [one for one in claimed if one.run_id is not None]
    return await with_inputs(session, catalog, claimed, returned_now(reports, settled))
