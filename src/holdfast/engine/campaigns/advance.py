"""Advance campaigns: one bounded pass counts the outcomes of released dead letters, decides, and releases the next
ones.

Any number of processes may run it: a campaign's row is locked while a pass advances it. All state is in the database,
so campaigns survive restarts of every process. Released tasks wait in their own queue, under its limits. After each
pass all campaigns rest in proportion to its duration, so that other work keeps its share of the database.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.core.dead_letters.campaign import (
    MOVING,
    PRIORITY,
    CampaignCounts,
    CampaignState,
    CampaignStep,
    how_many_fit,
    is_newer,
    next_step,
)
from holdfast.core.dead_letters.dead_letter import SWEEP_ACTOR
from holdfast.core.health.liveness import SILENT_SECONDS_MIN
from holdfast.engine.audit import Change, audit
from holdfast.engine.campaigns.candidates import Candidates, keep_place, look, place_after, which
from holdfast.engine.for_each_row import all_in_turn, apart
from holdfast.engine.lifecycle.dead_letters.requeue import (
    DeadLetter,
    RequeueRequest,
    dispatch_run,
    dispatch_tasks,
    letters_of,
    lock_run_dead_letters,
    request,
    waiting,
)
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict, Unavailable
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.dead_letters import campaigns as campaigns_sql
from holdfast.store.sql.dead_letters import commands as commands_sql
from holdfast.store.sql.queries import campaigns as campaigns_queries_sql

CAMPAIGNS_BATCH = 50
RELEASE_BATCH = 500
"""How many dead letters one pass releases per campaign."""
TURN_SECONDS = 10.0
"""How long the turn of a process that died while it advanced campaigns blocks the others."""
PASS_SECONDS = 1.0
"""After this time a pass leaves the remaining campaigns to the next one, with a rest in between."""
REST_SECONDS_MAX = 5.0
"""The longest rest, however long a pass took; also the rest of a campaign whose pass failed."""


class CampaignsAdvanced(msgspec.Struct):
    """The result of a pass: dead letters released, campaigns in progress, and the notifications to send."""

    released: int = 0
    under_way: int = 0
    notifications: Notifications = NO_NOTIFICATIONS


async def campaigns_once(
    database: Database,
    catalog: Catalog,
    *,
    limit: int = RELEASE_BATCH,
    silent_seconds: float = SILENT_SECONDS_MIN,
    rest: float = 0.0,
) -> CampaignsAdvanced:
    """Advance every campaign one step, then let all of them rest for `rest` times the duration.

    One process at a time does this, so together they use one share of one connection's time. With `rest` 0 there are no
    turns. A worker without a heartbeat for `silent_seconds` does not count as a newer version.
    """
    going = _Pass(database, catalog, limit, silent_seconds, rests=rest > 0)
    if not rest:
        await going.run(0)
        return going.moved
    rows = await campaigns_sql.moving_campaigns(database, CAMPAIGNS_BATCH, 0)
    turn = await campaigns_sql.take_campaign_turn(database, TURN_SECONDS) if rows else None
    if turn is None:
        return CampaignsAdvanced(under_way=sum(row.state in _UNDER_WAY for row in rows))
    await going.run(turn.campaign_id)
    seconds = min(rest * (time.monotonic() - going.began_at), REST_SECONDS_MAX)
    await campaigns_sql.end_campaign_turn(database, turn.rests_until, seconds, going.left_off_at)
    return going.moved


_UNDER_WAY = (CampaignState.CANARY, CampaignState.RAMP)


class _Pass:
    """One pass over the campaigns: `moved` is its result, `left_off_at` the last campaign that it advanced before its
    time was up."""

    def __init__(self, database: Database, catalog: Catalog, limit: int, silent_seconds: float, *, rests: bool) -> None:
        self._database = database
        self._catalog = catalog
        self._limit = limit
        self._silent_seconds = silent_seconds
        self._rests = rests
        self._last = 0
        self.moved = CampaignsAdvanced()
        self.left_off_at = 0
        self.began_at = time.monotonic()

    async def run(self, after: int) -> None:
        await all_in_turn(
            partial(campaigns_sql.moving_campaigns, self._database),
            self._step,
            number=lambda row: row.campaign_id,
            limit=CAMPAIGNS_BATCH,
            what="campaigns",
            after=after,
        )

    async def _step(self, row: campaigns_sql.MovingCampaignsRow) -> None:
        if self._rests and self._last and time.monotonic() - self.began_at > PASS_SECONDS:
            self.left_off_at = self._last
            self.moved.under_way += 1
            return
        self._last = row.campaign_id
        try:
            await self._move(row)
        except Unavailable:
            raise
        except Exception:
            if self._rests:
                with apart("campaigns", row):
                    await campaigns_sql.rest_campaign(self._database, row.campaign_id, REST_SECONDS_MAX, _FAILED)
            raise

    async def _move(self, row: campaigns_sql.MovingCampaignsRow) -> None:
        moved = CampaignsAdvanced()
        state = CampaignState(row.state)
        async with self._database.transaction() as session:
            campaign = await campaigns_sql.lock_campaign(session, row.campaign_id)
            if campaign is not None:
                state = await _move(session, self._catalog, campaign, self._limit, moved, self._silent_seconds)
        self.moved.released += moved.released
        self.moved.under_way += state in _UNDER_WAY
        self.moved.notifications = self.moved.notifications.and_(moved.notifications)


_FAILED = f"its last pass failed; the next one comes in {REST_SECONDS_MAX:g} seconds"


async def _move(
    session: Session,
    catalog: Catalog,
    campaign: campaigns_sql.LockCampaignRow,
    limit: int,
    moved: CampaignsAdvanced,
    silent_seconds: float,
) -> CampaignState:
    """Advance a campaign one step. Return its new state."""
    collected = await campaigns_sql.collect_campaign(session, campaign.campaign_id, SWEEP_ACTOR, campaign.leg)
    state = CampaignState(campaign.state)
    is_gate_open = await _is_gate_open(session, campaign, silent_seconds)
    is_moving = state in MOVING and is_gate_open
    room = max(min(limit, campaign.at_once - collected.outstanding), 1)
    found = await look(session, campaign, room) if is_moving else Candidates()
    step = next_step(_counts(campaign, collected, found, is_gate_open=is_gate_open))
    out = None
    if step.release:
        is_alone = collected.outstanding == 0
        out = await _release(session, catalog, campaign, found, min(step.release, room), moved, is_alone=is_alone)
    if out is None and is_moving:
        await keep_place(session, campaign, found)
    moved.released += out or 0
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
            before={"released": campaign.released},
            after={"released": campaign.released + out},
        )
    return step.state


async def _audit(
    session: Session, campaign: campaigns_sql.LockCampaignRow, verb: str, *, before: Any, after: Any
) -> None:
    subject = str(campaign.campaign_id)
    change = Change(verb=verb, subject_kind="campaign", subject_id=subject, before=before, after=after)
    await audit(session, campaign.tenant_id, [change], actor=SWEEP_ACTOR, reason=campaign.reason)


async def _store(session: Session, campaign: campaigns_sql.LockCampaignRow, step: CampaignStep) -> None:
    await campaigns_sql.move_campaign(session, campaign.campaign_id, campaign.state, step.state, step.note, SWEEP_ACTOR)


def _counts(
    campaign: campaigns_sql.LockCampaignRow,
    collected: campaigns_sql.CollectCampaignRow,
    found: Candidates,
    *,
    is_gate_open: bool,
) -> CampaignCounts:
    return CampaignCounts(
        state=CampaignState(campaign.state),
        canary=campaign.canary,
        at_once=campaign.at_once,
        left=len(found.letters) + found.is_waiting,
        outstanding=collected.outstanding,
        released=collected.leg_released,
        succeeded=collected.leg_succeeded,
        returned=collected.leg_returned,
        failed=collected.leg_failed,
        is_gate_open=is_gate_open,
        is_paused=found.is_waiting,
        is_looking=found.is_looking,
    )


async def _is_gate_open(session: Session, campaign: campaigns_sql.LockCampaignRow, silent_seconds: float) -> bool:
    if campaign.newer_than is None or campaign.state != CampaignState.AWAITING_VERSION:
        return True
    rows = await campaigns_queries_sql.lane_versions(session, campaign.lane_ids, silent_seconds, campaign.tenant_id)
    return any(is_newer(row.version, campaign.newer_than) for row in rows)


class _Unit(msgspec.Struct):
    """The unit of a release: a plain task, or a run with all its dead letters. `size` is its number of tasks."""

    run_id: int | None
    letters: list[DeadLetter]
    size: int = 1


async def _release(
    session: Session,
    catalog: Catalog,
    campaign: campaigns_sql.LockCampaignRow,
    found: Candidates,
    room: int,
    moved: CampaignsAdvanced,
    *,
    is_alone: bool,
) -> int | None:
    """Requeue the next dead letters, behind other tasks of their queues. A run is released with all its dead letters,
    or waits.

    Return how many were released; None if none was tried and nothing was recorded.
    """
    tenant_id, campaign_id = campaign.tenant_id, campaign.campaign_id
    held = await lock_run_dead_letters(
        session, tenant_id, (run_id for run_id in found.runs[:room] if run_id is not None)
    )
    ids = set(found.letters[:room])
    ids |= {row.dead_letter_id for row in held if row.fingerprint == campaign.fingerprint}
    units = _units(await campaigns_sql.take_campaign_dead_letters(session, *which(campaign), sorted(ids)), held)
    going = units[: how_many_fit((unit.size for unit in units), min(room, len(found.letters)), is_alone=is_alone)]
    by = RequeueRequest(campaign.started_by, f"campaign {campaign.name}", campaign_id, PRIORITY, lifts_pause=False)
    plain = [letter for unit in going if unit.run_id is None for letter in unit.letters]
    out = await _release_tasks(session, campaign, plain, by, moved)
    # The oldest dead letters choose the runs; the runs are still locked in the global order.
    for unit in sorted(going, key=lambda unit: unit.run_id or 0):
        if unit.run_id is not None:
            out += await _release_run(session, catalog, campaign, unit, held, by, moved)
    tried = {letter.dead_letter_id: letter.task_id for unit in going for letter in unit.letters}
    gone = {letter.dead_letter_id: letter.task_id for letter in out}
    noted = tried | gone
    if not noted:
        return None
    letter_ids = sorted(noted)
    columns = (letter_ids, [noted[one] for one in letter_ids], [one in gone for one in letter_ids])
    await campaigns_sql.note_released(session, campaign_id, campaign.leg, *columns, *place_after(found, noted))
    return len(gone)


def _units(
    rows: Sequence[campaigns_sql.TakeCampaignDeadLettersRow], held: Sequence[commands_sql.LockDeadLettersOfRunsRow]
) -> list[_Unit]:
    """Group taken dead letters into the units that are released together, oldest first."""
    units: dict[tuple[int | None, int], _Unit] = {}
    for row in rows:
        key = (row.run_id, row.task_id if row.run_id is None else 0)
        units.setdefault(key, _Unit(row.run_id, [])).letters += letters_of([row])
    for unit in units.values():
        if unit.run_id is not None:
            others = {row.dead_letter_id for row in waiting(held, unit.run_id)}
            unit.size = len(others | {letter.dead_letter_id for letter in unit.letters})
    return list(units.values())


async def _release_tasks(
    session: Session,
    campaign: campaigns_sql.LockCampaignRow,
    letters: Sequence[DeadLetter],
    by: RequeueRequest,
    moved: CampaignsAdvanced,
) -> list[DeadLetter]:
    if not letters:
        return []
    done = await dispatch_tasks(session, campaign.tenant_id, letters, by, is_asked=False)
    moved.notifications = moved.notifications.and_(done.notifications)
    return done.letters


async def _release_run(
    session: Session,
    catalog: Catalog,
    campaign: campaigns_sql.LockCampaignRow,
    unit: _Unit,
    held: Sequence[commands_sql.LockDeadLettersOfRunsRow],
    by: RequeueRequest,
    moved: CampaignsAdvanced,
) -> list[DeadLetter]:
    """Requeue a run for its dead letters; release none if it cannot continue (it was canceled, or is already
    running)."""
    assert unit.run_id is not None
    try:
        async with session.transaction():
            await request(session, [letter.dead_letter_id for letter in unit.letters], by)
            run_id, letters = unit.run_id, unit.letters
            done, _ = await dispatch_run(session, catalog, campaign.tenant_id, run_id, letters, held, by)
    except Conflict:
        return []
    moved.notifications = moved.notifications.and_(done.notifications)
    return done.letters
