"""Operator commands on campaigns: start, approve, abort, resume, show and list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec

from holdfast.core.dead_letters.campaign import AT_ONCE, AT_ONCE_MAX, CANARY, newest
from holdfast.core.values.bounds import required_reason, valid_reason
from holdfast.engine.audit import Change, audit
from holdfast.engine.campaigns.plan import no_open_group
from holdfast.engine.engine import Engine
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.errors import Conflict, HoldfastError, Invalid, NotFound
from holdfast.store.database import Session
from holdfast.store.session import first
from holdfast.store.sql.dead_letters import campaigns as campaigns_sql
from holdfast.store.sql.queries import campaigns as campaigns_queries_sql

NAME_CHARACTERS_MAX = 128
NO_REASON = "aborted; no reason was given"


class CampaignView(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign. `total` dead letters belong to it; those `returned` failed with the same fingerprint again.

    `rests_until` is set if its last pass failed.
    """

    campaign_id: str
    name: str
    fingerprint: str
    state: str
    reason: str
    started_by: str
    started_at: datetime
    changed_by: str
    changed_at: datetime
    ended_at: datetime | None
    approved_by: str | None
    resumed_by: str | None = None
    needs_approval: bool
    newer_than: str | None
    canary: int
    at_once: int
    leg: int
    total: int
    released: int
    succeeded: int
    returned: int
    failed: int
    canceled: int
    dropped: int
    outstanding: int
    note: str
    rests_until: datetime | None = None
    queues: list[str]


async def start_campaign(
    engine: Engine,
    tenant_id: int,
    fingerprint: str,
    *,
    actor: str,
    reason: str,
    name: str = "",
    canary: int = CANARY,
    at_once: int = AT_ONCE,
    needs_approval: bool = False,
    needs_newer_version: bool = False,
    once: IdempotentRequest | None = None,
) -> CampaignView:
    """Start a campaign over the dead letters of a group that are open or ignored.

    `needs_newer_version` waits for a worker newer than the newest one that failed, and is refused if no failing version
    is recorded. With `once`, a repetition gets the campaign as it began.
    """
    why = required_reason(reason)
    if not 1 <= canary <= at_once <= AT_ONCE_MAX:
        raise Invalid(
            f"The canary must be from 1 to {at_once}, and at most {AT_ONCE_MAX} letters can be out at once.",
            code="invalid_campaign",
        )
    if len(name) > NAME_CHARACTERS_MAX:
        raise Invalid(f"A name has at most {NAME_CHARACTERS_MAX} characters.", code="invalid_name")
    failed_on: list[str] = []
    if needs_newer_version:
        versions = await campaigns_queries_sql.group_versions(
            engine.database, tenant_id, fingerprint, engine.silent_seconds
        )
        failed_on = versions.failed_on
    than = newest(failed_on) if needs_newer_version else None
    asked = (name.strip() or fingerprint, why, actor, needs_approval, than, canary, at_once)
    async with engine.database.transaction() as session:
        if once is not None:
            await once.begin(session)
        row = await campaigns_sql.start_campaign(session, tenant_id, fingerprint, *asked)
        if row is None:
            raise await _not_started(session, tenant_id, fingerprint)
        if needs_newer_version and not failed_on:
            raise _unknown_versions(fingerprint)
        (stored,) = await campaigns_queries_sql.list_campaigns(session, tenant_id, row.campaign_id, 1, None)
        view = _view(stored)
        if once is not None:
            await once.keep(session, view)
        await _audit(session, tenant_id, "campaign.start", row.campaign_id, actor=actor, reason=why)
    return view


async def approve_campaign(engine: Engine, tenant_id: int, campaign_id: int, *, actor: str) -> CampaignView:
    """Approve a campaign that another operator started or resumed."""
    async with engine.database.transaction() as session:
        row = await campaigns_sql.approve_campaign(session, campaign_id, tenant_id, actor)
        if row is not None:
            await _audit(session, tenant_id, "campaign.approve", campaign_id, before=row.was, actor=actor, reason="")
    view = await show_campaign(engine, tenant_id, campaign_id)
    if row is not None:
        return view
    if view.state == "awaiting_approval":
        asked = f"started by {view.started_by}" if view.resumed_by is None else f"resumed by {view.resumed_by}"
        raise Conflict(
            f"Campaign {campaign_id} was {asked}: four eyes are needed.",
            code="approval_by_starter",
            advice="Another operator has to approve it.",
        )
    raise _wrong_state(view, "approved")


async def abort_campaign(engine: Engine, tenant_id: int, campaign_id: int, *, actor: str, reason: str) -> CampaignView:
    """Abort a campaign: release nothing more, ever. Released tasks continue.

    A reason is optional, so that stopping is never delayed; without one the record states that none was given.
    """
    note = valid_reason(reason) if reason.strip() else NO_REASON
    return await _steer(
        engine,
        tenant_id,
        campaign_id,
        lambda session: campaigns_sql.abort_campaign(session, campaign_id, tenant_id, actor, note),
        verb="campaign.abort",
        actor=actor,
        note=note,
    )


async def resume_campaign(engine: Engine, tenant_id: int, campaign_id: int, *, actor: str, reason: str) -> CampaignView:
    """Resume a stopped campaign with a new canary over the dead letters that are left, that failed again, and that are
    new.

    It has to meet its original conditions again: approval by another operator than the one who resumes it, and a worker
    newer than every one that has failed by now.
    """
    why = required_reason(reason)
    view = await show_campaign(engine, tenant_id, campaign_id)
    than = view.newer_than
    if than is not None:
        versions = await campaigns_queries_sql.group_versions(
            engine.database, tenant_id, view.fingerprint, engine.silent_seconds
        )
        than = newest([than, *versions.failed_on])
    return await _steer(
        engine,
        tenant_id,
        campaign_id,
        lambda session: campaigns_sql.resume_campaign(session, campaign_id, tenant_id, actor, why, than),
        verb="campaign.resume",
        actor=actor,
        note=why,
    )


async def show_campaign(engine: Engine, tenant_id: int, campaign_id: int) -> CampaignView:
    """Return one campaign; raise `NotFound` if it does not exist."""
    row = first(await campaigns_queries_sql.list_campaigns(engine.database, tenant_id, campaign_id, 1, None))
    if row is None:
        raise NotFound(
            f"There is no campaign {campaign_id}.", code="campaign_not_found", advice="See `holdfast campaign list`."
        )
    return _view(row)


async def list_campaigns(
    engine: Engine, tenant_id: int, *, before: int | None = None, limit: int = 50
) -> list[CampaignView]:
    """Return a page of campaigns, newest first; the next page begins `before` the last id of this one."""
    return [
        _view(row)
        for row in await campaigns_queries_sql.list_campaigns(engine.database, tenant_id, None, limit, before)
    ]


async def _steer(
    engine: Engine,
    tenant_id: int,
    campaign_id: int,
    change: Callable[[Session], Awaitable[campaigns_sql.AbortCampaignRow | campaigns_sql.ResumeCampaignRow | None]],
    *,
    verb: str,
    actor: str,
    note: str,
) -> CampaignView:
    async with engine.database.transaction() as session:
        row = await change(session)
        if row is not None:
            await _audit(session, tenant_id, verb, campaign_id, before=row.was, actor=actor, reason=note)
    view = await show_campaign(engine, tenant_id, campaign_id)
    if row is None:
        raise _wrong_state(view, {"campaign.abort": "aborted", "campaign.resume": "resumed"}[verb])
    return view


async def _audit(
    session: Session,
    tenant_id: int,
    verb: str,
    campaign_id: int,
    *,
    actor: str,
    reason: str,
    before: str | None = None,
) -> None:
    change = Change(
        verb=verb,
        subject_kind="campaign",
        subject_id=str(campaign_id),
        before=None if before is None else {"state": before},
        after={"state": await campaigns_queries_sql.campaign_state(session, campaign_id)},
    )
    await audit(session, tenant_id, [change], actor=actor, reason=reason)


async def _not_started(session: Session, tenant_id: int, fingerprint: str) -> HoldfastError:
    row = await campaigns_queries_sql.campaign_of_group(session, tenant_id, fingerprint)
    if row is None:
        return no_open_group(fingerprint)
    campaign_id = str(row.campaign_id)
    return Conflict(
        f"Campaign {campaign_id} works on this group already; it is {row.state}.",
        code="campaign_exists",
        advice=f"See `holdfast campaign show {campaign_id}`.",
        campaign_id=campaign_id,
    )


def _unknown_versions(fingerprint: str) -> Conflict:
    return Conflict(
        f"On which versions the tasks of the group {fingerprint!r} failed is not on record.",
        code="versions_unknown",
        advice="Start the campaign without waiting for a newer version once one is there.",
    )


def _wrong_state(view: CampaignView, word: str) -> Conflict:
    return Conflict(
        f"Campaign {view.campaign_id} cannot be {word}: it is {view.state}.",
        code="campaign_wrong_state",
        state=view.state,
    )


def _view(row: campaigns_queries_sql.ListCampaignsRow) -> CampaignView:
    return CampaignView(**{**row._asdict(), "campaign_id": str(row.campaign_id)})
