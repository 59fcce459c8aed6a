"""Campaigns move: one bounded pass counts what became of released letters, decides, and releases the next ones.

Any number of processes may run it: a campaign's row is locked while one moves it. Everything that matters is in the
database, so a campaign survives restarts of everything. Released tasks wait in their own queue, under its limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.campaign import PRIORITY, CampaignCounts, CampaignState, Step, is_newer, next_step
from holdfast.core.dead import DISPATCHER_ACTOR
from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.letters import By, Letter, dispatch_run, dispatch_tasks, letters_of, request
from holdfast.dispatcher.news import NO_NEWS, News
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_MOVING_CAMPAIGNS = sql("moving_campaigns")
_LOCK_CAMPAIGN = sql("lock_campaign")
_COLLECT = sql("collect_campaign")
_LEFT = sql("campaign_left")
_ALL = 2**31 - 1
_TAKE = sql("take_campaign_letters")
_NOTE_RELEASED = sql("note_released")
_MOVE = sql("move_campaign")
_LANE_VERSIONS = sql("lane_versions")

CAMPAIGNS_BATCH = 50
RELEASE_BATCH = 500
"""How many letters one pass releases of one campaign."""
PRESENT_SECONDS = 30.0
"""A worker unheard for longer does not open a gate."""


class Moved(msgspec.Struct):
    """What one pass did: letters released, campaigns under way, and what to announce."""

    released: int = 0
    under_way: int = 0
    news: News = NO_NEWS


async def campaigns_once(database: Database, catalog: Catalog, *, limit: int = RELEASE_BATCH) -> Moved:
    """Move every campaign one step."""
    moved = Moved()
    for row in await database.fetch(_MOVING_CAMPAIGNS, CAMPAIGNS_BATCH):
        async with database.transaction() as session:
            campaign = await session.fetchrow(_LOCK_CAMPAIGN, row["campaign_id"])
            if campaign is not None:
                await _move(session, catalog, campaign, limit, moved)
    return moved


async def _move(session: Session, catalog: Catalog, campaign: Any, limit: int, moved: Moved) -> None:
    collected = await session.fetchrow(_COLLECT, campaign["campaign_id"], DISPATCHER_ACTOR, campaign["leg"])
    state = CampaignState(campaign["state"])
    step = next_step(await _counts(session, campaign, collected))
    out = await _release(session, catalog, campaign, min(step.release, limit), moved) if step.release else 0
    moved.released += out
    if step.state in (CampaignState.CANARY, CampaignState.RAMP):
        moved.under_way += 1
    if (step.state, step.note) != (state, ""):
        await _store(session, campaign, step)
    if step.state is not state:
        after = {"state": step.state.value, "note": step.note}
        await _audit(session, campaign, "move", before={"state": state.value}, after=after)
    if out:
        await _audit(session, campaign, "release", before=None, after={"letters": out})


async def _audit(session: Session, campaign: Any, word: str, *, before: Any, after: Any) -> None:
    subject = str(campaign["campaign_id"])
    change = Change(verb=f"campaign.{word}", subject_kind="campaign", subject_id=subject, before=before, after=after)
    await audit(session, campaign["tenant_id"], [change], actor=DISPATCHER_ACTOR, reason=campaign["reason"])


async def _store(session: Session, campaign: Any, step: Step) -> None:
    await session.fetch(_MOVE, campaign["campaign_id"], campaign["state"], step.state, step.note, DISPATCHER_ACTOR)


async def _counts(session: Session, campaign: Any, collected: Any) -> CampaignCounts:
    which = (campaign["tenant_id"], campaign["fingerprint"], campaign["upto_id"], campaign["campaign_id"])
    left = await session.fetchrow(_LEFT, *which, campaign["at_once"])
    if left["paused"] == left["left"] == campaign["at_once"]:
        # Behind those of a paused queue there may be others that can go.
        left = await session.fetchrow(_LEFT, *which, _ALL)
    return CampaignCounts(
        state=CampaignState(campaign["state"]),
        canary=campaign["canary"],
        at_once=campaign["at_once"],
        left=left["left"],
        outstanding=collected["outstanding"],
        released=collected["leg_released"],
        succeeded=collected["leg_succeeded"],
        returned=collected["leg_returned"],
        failed=collected["leg_failed"],
        is_gate_open=await _is_gate_open(session, campaign),
        is_paused=left["left"] > 0 and left["paused"] == left["left"],
    )


async def _is_gate_open(session: Session, campaign: Any) -> bool:
    if campaign["newer_than"] is None or campaign["state"] != CampaignState.AWAITING_VERSION:
        return True
    rows = await session.fetch(_LANE_VERSIONS, campaign["lane_ids"], PRESENT_SECONDS)
    return any(is_newer(row["version"], campaign["newer_than"]) for row in rows)


async def _release(session: Session, catalog: Catalog, campaign: Any, count: int, moved: Moved) -> int:
    """Requeue the next letters, behind other work of their queues."""
    which = (campaign["tenant_id"], campaign["fingerprint"], campaign["upto_id"], campaign["campaign_id"])
    rows = await session.fetch(_TAKE, *which, count)
    by = By(campaign["started_by"], f"campaign {campaign['name']}", campaign["campaign_id"], PRIORITY)
    out = await _release_tasks(session, campaign, letters_of(row for row in rows if row["run_id"] is None), by, moved)
    for run_id in sorted({row["run_id"] for row in rows if row["run_id"] is not None}):
        letters = letters_of(row for row in rows if row["run_id"] == run_id)
        out |= await _release_run(session, catalog, campaign, run_id, letters, by, moved)
    if rows:
        ids = [row["dead_letter_id"] for row in rows]
        tasks = [row["task_id"] for row in rows]
        await session.fetch(
            _NOTE_RELEASED, campaign["campaign_id"], campaign["leg"], ids, tasks, [one in out for one in ids]
        )
    return len(out)


async def _release_tasks(session: Session, campaign: Any, letters: Sequence[Letter], by: By, moved: Moved) -> set[int]:
    if not letters:
        return set()
    ids = {letter.dead_letter_id for letter in letters}
    await request(session, sorted(ids), by)
    done = await dispatch_tasks(session, campaign["tenant_id"], letters, by)
    moved.news = moved.news.and_(done.news)
    return ids


async def _release_run(
    session: Session, catalog: Catalog, campaign: Any, run_id: int, letters: Sequence[Letter], by: By, moved: Moved
) -> set[int]:
    """Requeue a run for its letters; none when it cannot go on (it was canceled, or goes already)."""
    ids = {letter.dead_letter_id for letter in letters}
    try:
        async with session.transaction():
            await request(session, sorted(ids), by)
            done = await dispatch_run(session, catalog, campaign["tenant_id"], run_id, letters, by)
    except Conflict:
        return set()
    moved.news = moved.news.and_(done.news)
    return ids
