"""Select the dead letters that a campaign may release, from a bounded part of its group per pass.

A round reads the group from its oldest dead letter to its newest, over several passes if needed. Dead letters in a
paused queue or run are skipped until the next round. Only a round that skipped none proves that nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from holdfast.store.database import Session
from holdfast.store.sql.dead_letters import campaigns as campaigns_sql

LOOK_BATCH = 500
LOOKS_MAX = 4
"""How many further batches a pass reads before it leaves the rest to the next pass."""


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that may be released, with their runs; or why there are none.

    `is_waiting`: all that are left belong to a paused queue or run. `is_looking`: the round has not ended. `looked_to`
    and `passed_by` are the position of the next pass, if all of these are released.
    """

    letters: Sequence[int] = ()
    runs: Sequence[int | None] = ()
    is_waiting: bool = False
    is_looking: bool = False
    looked_to: int = 0
    passed_by: bool = False


def which(campaign: campaigns_sql.LockCampaignRow) -> tuple[int, str, int, int]:
    """Return the arguments that select the dead letters of a campaign: tenant, group, last id and campaign."""
    return campaign.tenant_id, campaign.fingerprint, campaign.upto_id, campaign.campaign_id


async def look(session: Session, campaign: campaigns_sql.LockCampaignRow, room: int) -> Candidates:
    """Find the next dead letters of a campaign that may be released; at least `room` if there are that many nearby."""
    place, passed_by = campaign.looked_to, campaign.passed_by
    is_whole = place == 0
    letters: list[int] = []
    runs: list[int | None] = []
    # If every queue is paused, one dead letter is enough to find that out; it need not be the last one of this round.
    for size in (room if campaign.has_open_queue else 1, *[LOOK_BATCH] * LOOKS_MAX):
        row = await campaigns_sql.next_campaign_dead_letters(session, *which(campaign), place, size)
        letters += row.letters
        runs += row.runs
        passed_by = passed_by or row.has_paused
        if row.has_paused and not letters and not campaign.has_open_queue:
            return Candidates(is_waiting=True, looked_to=campaign.looked_to, passed_by=True)
        place = row.looked_to or place
        is_end = row.looked < size
        if len(letters) >= room or (letters and is_end):
            break
        if is_end and (is_whole or not passed_by):
            return Candidates(is_waiting=passed_by)
        if is_end:
            # A round that began in an earlier pass has ended; the dead letters that it skipped may be releasable by
            # now.
            place, passed_by, is_whole = 0, False, True
    return Candidates(letters=letters, runs=runs, is_looking=not letters, looked_to=place, passed_by=passed_by)


def place_after(found: Candidates, tried: Collection[int] = ()) -> tuple[int, bool]:
    """Return the position reached, and whether any were skipped. A candidate that was not tried comes first in the next
    pass."""
    left = next((one for one in found.letters if one not in tried), None)
    return found.looked_to if left is None else left - 1, found.passed_by


async def keep_place(session: Session, campaign: campaigns_sql.LockCampaignRow, found: Candidates) -> None:
    """Store the position of a pass that released nothing."""
    place = place_after(found)
    if place != (campaign.looked_to, campaign.passed_by):
        await campaigns_sql.store_campaign_position(session, campaign.campaign_id, *place)
