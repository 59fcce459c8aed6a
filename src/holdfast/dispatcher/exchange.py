"""Exchange: settle what ended and claim what is next, in one transaction and one commit.

Safe to repeat: a report settled before its answer was lost is found on record, and a claim whose answer was lost is
found again through what the worker holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.dispatcher.claim import Claimer
from holdfast.dispatcher.leases import Claimed, Report, Settled
from holdfast.dispatcher.settle import settle
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session

_NOTHING_SETTLED = Settled(0, [], [], [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    settled: Settled
    claimed: list[Claimed]


async def exchange(
    session: Session, catalog: Catalog, claimer: Claimer, reports: Sequence[Report], want: int, *, now: float
) -> Exchanged:
    """Settle `reports`, then claim at most `want` tasks."""
    async with session.transaction():
        settled = await settle(session, catalog, reports) if reports else _NOTHING_SETTLED
        claimed = await claimer.claim(session, want, now=now) if want > 0 else []
    return Exchanged(settled=settled, claimed=claimed)
