"""Settle the reports of a batch one by one when the batch cannot be settled as a whole.

The database may reject the values of a report, or this version cannot read the run or policy that it refers to. Only
that report is refused; its lease expires and the reaper decides.
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
"""Errors caused by the content of one report; repeating the report cannot help."""


async def settle_together(session: Session, catalog: Catalog, reports: Sequence[Report]) -> Settled:
    """Settle a batch in one transaction, or each report alone if that fails."""
    try:
        async with session.transaction():
            return await settle(session, catalog, reports)
    except UNSETTLEABLE_ERRORS:
        return await settle_one_by_one(session, catalog, reports)


async def settle_one_by_one(session: Session, catalog: Catalog, reports: Sequence[Report]) -> Settled:
    """Settle each report in a transaction of its own, after the batch failed with one of `UNSETTLEABLE_ERRORS`."""
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
