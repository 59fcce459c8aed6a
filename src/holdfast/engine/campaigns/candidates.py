"""Where a campaign looks for letters that may go: at a bounded part of its group in each pass.

A round goes through the group from its oldest letter to its newest, over as many passes as that takes. What waits with
a paused queue or run is passed by until the next round. Only a round that passed nobody by says that nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from holdfast.store.database import Session
from holdfast.store.statements import sql

_NEXT = sql("next_campaign_letters")
_KEEP_PLACE = sql("keep_campaign_place")

LOOK_BATCH = 500
LOOKS_MAX = 4
"""How often a pass asks for so many letters more before it leaves the rest to the next one."""


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that may go, and the run of each that has one; or why there are none.

    `is_waiting`: all that are left wait with a paused queue or run. `is_looking`: the round is not over. `looked_to`
    and `passed_by` are where the next look begins, if all of these go.
    """

    letters: Sequence[int] = ()
    runs: Sequence[int | None] = ()
    is_waiting: bool = False
    is_looking: bool = False
    looked_to: int = 0
    passed_by: bool = False


def which(campaign: Any) -> tuple[int, str, int, int]:
    """Whose letters, of which group, up to where, and of which campaign."""
    return campaign["tenant_id"], campaign["fingerprint"], campaign["upto_id"], campaign["campaign_id"]


async def look(session: Session, campaign: Any, room: int) -> Candidates:
    """Find the next letters of a campaign that may go, at least `room` of them if there are that many close by."""
    place, passed_by = campaign["looked_to"], campaign["passed_by"]
    is_whole = place == 0
    letters: list[int] = []
    runs: list[int | None] = []
    # Where every queue is paused the first letter says so; it need not be the last one looked at in this round.
    for size in (room if campaign["has_open_queue"] else 1, *[LOOK_BATCH] * LOOKS_MAX):
        row = await session.fetchrow(_NEXT, *which(campaign), place, size)
        letters += row["letters"]
        runs += row["runs"]
        passed_by = passed_by or row["has_paused"]
        if row["has_paused"] and not letters and not campaign["has_open_queue"]:
            return Candidates(is_waiting=True, looked_to=campaign["looked_to"], passed_by=True)
        place = row["looked_to"] or place
        is_end = row["looked"] < size
        if len(letters) >= room or (letters and is_end):
            break
        if is_end and (is_whole or not passed_by):
            return Candidates(is_waiting=passed_by)
        if is_end:
            # A round that began in another pass is over: those it passed by may go by now.
            place, passed_by, is_whole = 0, False, True
    return Candidates(letters=letters, runs=runs, is_looking=not letters, looked_to=place, passed_by=passed_by)


def place_after(found: Candidates, tried: Collection[int] = ()) -> tuple[int, bool]:
    """How far was looked, and whether some were passed by; what could have gone and was not tried is first in line."""
    left = next((one for one in found.letters if one not in tried), None)
    return found.looked_to if left is None else left - 1, found.passed_by


async def keep_place(session: Session, campaign: Any, found: Candidates) -> None:
    """Remember how far was looked by a pass that released nothing."""
    place = place_after(found)
    if place != (campaign["looked_to"], campaign["passed_by"]):
        await session.fetch(_KEEP_PLACE, campaign["campaign_id"], *place)
