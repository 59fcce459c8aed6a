"""Campaigns move: one bounded pass counts what became of released letters, decides, and releases the next ones.

Any number of processes may run it: a campaign's row is locked while one moves it. Everything that matters is in the
database, so a campaign survives restarts of everything. Released tasks wait in their own queue, under its limits, and a
campaign rests after each pass in proportion to what that took: other work keeps the database, whatever it can do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.campaign import PRIORITY, CampaignCounts, CampaignState, Step, how_many_fit, is_newer, next_step
from holdfast.core.dead import DISPATCHER_ACTOR
from holdfast.core.workers import SILENT_SECONDS_MIN
from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.letters import (
    By,
    Letter,
    dispatch_run,
    dispatch_tasks,
    hold_runs,
    letters_of,
    request,
    waiting,
)
from holdfast.dispatcher.news import NO_NEWS, News
from holdfast.dispatcher.one_by_one import Pages, all_in_turn
from holdfast.errors import Conflict
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_MOVING_CAMPAIGNS = sql("moving_campaigns")
_LOCK_CAMPAIGN = sql("lock_campaign")
_COLLECT = sql("collect_campaign")
_NEXT = sql("next_campaign_letters")
_LEFT = sql("campaign_left")
_TAKE = sql("take_campaign_letters")
_NOTE_RELEASED = sql("note_released")
_MOVE = sql("move_campaign")
_REST = sql("rest_campaign")
_LANE_VERSIONS = sql("lane_versions")

CAMPAIGNS_BATCH = 50
RELEASE_BATCH = 500
"""How many letters one pass releases of one campaign."""


class Moved(msgspec.Struct):
    """What one pass did: letters released, campaigns under way, and what to announce."""

    released: int = 0
    under_way: int = 0
    news: News = NO_NEWS


async def campaigns_once(
    database: Database,
    catalog: Catalog,
    *,
    limit: int = RELEASE_BATCH,
    silent_seconds: float = SILENT_SECONDS_MIN,
    rest: float = 0.0,
) -> Moved:
    """Move every campaign one step, after which it rests for `rest` times what that took.

    A worker that was silent for longer opens no gate.
    """
    everything = Moved()

    async def move(row: Any) -> None:
        moved = Moved()
        state = CampaignState(row["state"])
        async with database.transaction() as session:
            campaign = await session.fetchrow(_LOCK_CAMPAIGN, row["campaign_id"])
            if campaign is not None:
                began_at = time.monotonic()
                state = await _move(session, catalog, campaign, limit, moved, silent_seconds)
                if rest:
                    await session.fetch(_REST, campaign["campaign_id"], rest * (time.monotonic() - began_at))
        everything.released += moved.released
        everything.under_way += state in (CampaignState.CANARY, CampaignState.RAMP)
        everything.news = everything.news.and_(moved.news)

    of = Pages(_MOVING_CAMPAIGNS, number="campaign_id", limit=CAMPAIGNS_BATCH)
    await all_in_turn(database, of, move, what="campaigns")
    return everything


async def _move(
    session: Session, catalog: Catalog, campaign: Any, limit: int, moved: Moved, silent_seconds: float
) -> CampaignState:
    """One step of a campaign; the state it is in then."""
    collected = await session.fetchrow(_COLLECT, campaign["campaign_id"], DISPATCHER_ACTOR, campaign["leg"])
    state = CampaignState(campaign["state"])
    is_gate_open = await _is_gate_open(session, campaign, silent_seconds)
    room = max(min(limit, campaign["at_once"] - collected["outstanding"]), 1)
    ready = await session.fetch(_NEXT, *_which(campaign), room)
    step = next_step(await _counts(session, campaign, collected, len(ready), is_gate_open=is_gate_open))
    out = 0
    if step.release:
        is_alone = collected["outstanding"] == 0
        out = await _release(session, catalog, campaign, ready[: step.release], moved, is_alone=is_alone)
    moved.released += out
    if (step.state, step.note) != (state, ""):
        await _store(session, campaign, step)
    if step.state is not state:
        after = {"state": step.state.value, "note": step.note}
        await _audit(session, campaign, "campaign.move", before={"state": state.value}, after=after)
    if out:
        await _audit(
            session,
            campaign,
            "campaign.release",
            before={"released": campaign["released"]},
            after={"released": campaign["released"] + out},
        )
    return step.state


def _which(campaign: Any) -> tuple[int, str, int, int]:
    """Whose letters, of which group, up to where, and of which campaign."""
    return campaign["tenant_id"], campaign["fingerprint"], campaign["upto_id"], campaign["campaign_id"]


async def _audit(session: Session, campaign: Any, verb: str, *, before: Any, after: Any) -> None:
    subject = str(campaign["campaign_id"])
    change = Change(verb=verb, subject_kind="campaign", subject_id=subject, before=before, after=after)
    await audit(session, campaign["tenant_id"], [change], actor=DISPATCHER_ACTOR, reason=campaign["reason"])


async def _store(session: Session, campaign: Any, step: Step) -> None:
    await session.fetch(_MOVE, campaign["campaign_id"], campaign["state"], step.state, step.note, DISPATCHER_ACTOR)


async def _counts(session: Session, campaign: Any, collected: Any, ready: int, *, is_gate_open: bool) -> CampaignCounts:
    is_paused = not ready and bool(await session.fetchval(_LEFT, *_which(campaign)))
    return CampaignCounts(
        state=CampaignState(campaign["state"]),
        canary=campaign["canary"],
        at_once=campaign["at_once"],
        left=ready + is_paused,
        outstanding=collected["outstanding"],
        released=collected["leg_released"],
        succeeded=collected["leg_succeeded"],
        returned=collected["leg_returned"],
        failed=collected["leg_failed"],
        is_gate_open=is_gate_open,
        is_paused=is_paused,
    )


async def _is_gate_open(session: Session, campaign: Any, silent_seconds: float) -> bool:
    if campaign["newer_than"] is None or campaign["state"] != CampaignState.AWAITING_VERSION:
        return True
    rows = await session.fetch(_LANE_VERSIONS, campaign["lane_ids"], silent_seconds, campaign["tenant_id"])
    return any(is_newer(row["version"], campaign["newer_than"]) for row in rows)


class _Unit(msgspec.Struct):
    """What is released as one: a plain task, or a run with all its letters. `size` is how many tasks that is."""

    run_id: int | None
    letters: list[Letter]
    size: int = 1


async def _release(
    session: Session, catalog: Catalog, campaign: Any, rows: Sequence[Any], moved: Moved, *, is_alone: bool
) -> int:
    """Requeue the next letters, behind other work of their queues. A run goes with all its letters, or waits."""
    tenant_id, campaign_id = campaign["tenant_id"], campaign["campaign_id"]
    held = await hold_runs(session, tenant_id, (row["run_id"] for row in rows if row["run_id"] is not None))
    ids = {row["dead_letter_id"] for row in rows}
    ids |= {row["dead_letter_id"] for row in held if row["fingerprint"] == campaign["fingerprint"]}
    units = _units(await session.fetch(_TAKE, *_which(campaign), sorted(ids)), held)
    going = units[: how_many_fit((unit.size for unit in units), len(rows), is_alone=is_alone)]
    by = By(campaign["started_by"], f"campaign {campaign['name']}", campaign_id, PRIORITY, lifts_pause=False)
    plain = [letter for unit in going if unit.run_id is None for letter in unit.letters]
    out = await _release_tasks(session, campaign, plain, by, moved)
    # The oldest letters choose which runs go; these are locked in the one order all the same.
    for unit in sorted(going, key=lambda unit: unit.run_id or 0):
        if unit.run_id is not None:
            out += await _release_run(session, catalog, campaign, unit, held, by, moved)
    tried = {letter.dead_letter_id: letter.task_id for unit in going for letter in unit.letters}
    gone = {letter.dead_letter_id: letter.task_id for letter in out}
    if noted := sorted((tried | gone).items()):
        letter_ids, task_ids = [one for one, _ in noted], [one for _, one in noted]
        is_out = [one in gone for one in letter_ids]
        await session.fetch(_NOTE_RELEASED, campaign_id, campaign["leg"], letter_ids, task_ids, is_out)
    return len(gone)


def _units(rows: Sequence[Any], held: Sequence[Any]) -> list[_Unit]:
    """Taken letters as what goes together, oldest first."""
    units: dict[tuple[int | None, int], _Unit] = {}
    for row in rows:
        key = (row["run_id"], row["task_id"] if row["run_id"] is None else 0)
        units.setdefault(key, _Unit(row["run_id"], [])).letters += letters_of([row])
    for unit in units.values():
        if unit.run_id is not None:
            others = {row["dead_letter_id"] for row in waiting(held, unit.run_id)}
            unit.size = len(others | {letter.dead_letter_id for letter in unit.letters})
    return list(units.values())


async def _release_tasks(
    session: Session, campaign: Any, letters: Sequence[Letter], by: By, moved: Moved
) -> list[Letter]:
    if not letters:
        return []
    await request(session, [letter.dead_letter_id for letter in letters], by)
    done = await dispatch_tasks(session, campaign["tenant_id"], letters, by)
    moved.news = moved.news.and_(done.news)
    return list(letters)


async def _release_run(
    session: Session, catalog: Catalog, campaign: Any, unit: _Unit, held: Sequence[Any], by: By, moved: Moved
) -> list[Letter]:
    """Requeue a run for its letters; none when it cannot go on (it was canceled, or goes already)."""
    assert unit.run_id is not None
    try:
        async with session.transaction():
            await request(session, [letter.dead_letter_id for letter in unit.letters], by)
            run_id, letters = unit.run_id, unit.letters
            done, _ = await dispatch_run(session, catalog, campaign["tenant_id"], run_id, letters, held, by)
    except Conflict:
        return []
    moved.news = moved.news.and_(done.news)
    return done.letters
