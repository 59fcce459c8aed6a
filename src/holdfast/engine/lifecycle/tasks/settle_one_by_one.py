"""Settle apart: one report of a batch that cannot be settled holds up no other.

It may be that the database does not take what it says, or that this version cannot read the run or policy it is about.
It is refused alone; its lease runs out and the reaper decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.engine.leases import NOTHING_SETTLED, Refusal, Report, Settled
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.notifications import NO_NOTIFICATIONS
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import REFUSED, Session

log = logging.getLogger("holdfast.exchange")

UNSETTLEABLE_ERRORS: tuple[type[Exception], ...] = (*REFUSED, Invalid)
"""What settling says about one report; to repeat it cannot help."""


async def settle_together(session: Session, catalog: Catalog, reports: Sequence[Report]) -> Settled:
    """Settle a batch in one transaction if that can be done, each alone otherwise."""
    try:
        async with session.transaction():
            return await settle(session, catalog, reports)
    except UNSETTLEABLE_ERRORS:
        return await settle_one_by_one(session, catalog, reports)


async def settle_one_by_one(session: Session, catalog: Catalog, reports: Sequence[Report]) -> Settled:
    """Settle each report in a transaction of its own; called where the batch failed with `UNSETTLEABLE_ERRORS`."""
    log.exception("a report in a batch of %d cannot be settled; settling each alone", len(reports))
    settled = NOTHING_SETTLED
    for report in reports:
        try:
            async with session.transaction():
                alone = await settle(session, catalog, [report])
        except REFUSED as error:
            alone = _refused(report, f"the database refused the report: {error}")
        except Invalid as error:
            alone = _refused(report, f"what it is about cannot be read here: {error}")
        settled = settled.and_(alone)
    return settled


def _refused(report: Report, why: str) -> Settled:
    return Settled(0, [Refusal(report.task_id, report.attempt, why)], NO_NOTIFICATIONS)
