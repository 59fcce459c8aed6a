"""Operations on campaigns, which re-drive a group of dead letters as one unit."""

from __future__ import annotations

import msgspec

from holdfast.core.dead_letters.campaign import AT_ONCE, CANARY
from holdfast.core.identity.access import Access
from holdfast.engine.campaigns import commands as campaign_commands
from holdfast.engine.campaigns import plan
from holdfast.engine.campaigns.commands import CampaignView
from holdfast.engine.campaigns.plan import CampaignPlan
from holdfast.errors import NotFound
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import KeyUse, Request, operation
from holdfast.operations.paging import PAGE, Limit, next_of, rows_of


class PlanCampaign(Request, frozen=True, kw_only=True):
    fingerprint: str


class StartCampaign(Request, frozen=True, kw_only=True):
    """A group, the reason why it will work now, and how carefully to proceed."""

    fingerprint: str
    reason: str
    name: str = ""
    canary: int = CANARY
    at_once: int = AT_ONCE
    approval: bool = False
    newer: bool = False


class ListCampaigns(Request, frozen=True, kw_only=True):
    """`before` is the `next` of the previous page."""

    before: str | None = None
    limit: Limit = PAGE


class CampaignPage(msgspec.Struct, frozen=True, kw_only=True):
    campaigns: list[CampaignView]
    next: str | None


class OfCampaign(Request, frozen=True, kw_only=True):
    campaign_id: str


class SteerCampaign(Request, frozen=True, kw_only=True):
    campaign_id: str
    reason: str = ""


@operation("campaign.plan", "GET /api/v1/dead/groups/{fingerprint}/plan", Access.VIEWER, commands=("campaign start",))
async def plan_campaign(context: OperationContext, request: PlanCampaign) -> CampaignPlan:
    """Returns what a campaign over a group would do, and changes nothing."""
    return await plan.plan_campaign(context.engine, context.tenant_id, request.fingerprint)


@operation("campaign.start", "POST /api/v1/campaigns", Access.OPERATOR, status=201, once=KeyUse.STORED)
async def start_campaign(context: OperationContext, request: StartCampaign) -> CampaignView:
    """Starts a campaign: a canary first, then more while it succeeds."""
    return await campaign_commands.start_campaign(
        context.engine,
        context.tenant_id,
        request.fingerprint,
        actor=context.actor,
        reason=request.reason,
        name=request.name,
        canary=request.canary,
        at_once=max(request.at_once, request.canary),
        needs_approval=request.approval,
        needs_newer_version=request.newer,
        once=context.once,
    )


@operation("campaign.list", "GET /api/v1/campaigns", Access.VIEWER)
async def list_campaigns(context: OperationContext, request: ListCampaigns) -> CampaignPage:
    """Lists campaigns, newest first."""
    before = None if request.before is None else _number(request.before)
    limit = rows_of(request.limit)
    rows = await campaign_commands.list_campaigns(context.engine, context.tenant_id, before=before, limit=limit)
    return CampaignPage(campaigns=rows, next=next_of(rows, limit, lambda row: row.campaign_id))


@operation("campaign.show", "GET /api/v1/campaigns/{campaign_id}", Access.VIEWER)
async def show_campaign(context: OperationContext, request: OfCampaign) -> CampaignView:
    """Shows one campaign and its progress."""
    return await campaign_commands.show_campaign(context.engine, context.tenant_id, _number(request.campaign_id))


@operation("campaign.approve", "POST /api/v1/campaigns/{campaign_id}/approve", Access.OPERATOR)
async def approve_campaign(context: OperationContext, request: OfCampaign) -> CampaignView:
    """Approves a campaign that another operator started or resumed."""
    number = _number(request.campaign_id)
    return await campaign_commands.approve_campaign(context.engine, context.tenant_id, number, actor=context.actor)


@operation("campaign.abort", "POST /api/v1/campaigns/{campaign_id}/abort", Access.OPERATOR)
async def abort_campaign(context: OperationContext, request: SteerCampaign) -> CampaignView:
    """Stops a campaign for good: nothing more is released, and released tasks continue. The reason is optional."""
    number = _number(request.campaign_id)
    return await campaign_commands.abort_campaign(
        context.engine, context.tenant_id, number, actor=context.actor, reason=request.reason
    )


@operation("campaign.resume", "POST /api/v1/campaigns/{campaign_id}/resume", Access.OPERATOR)
async def resume_campaign(context: OperationContext, request: SteerCampaign) -> CampaignView:
    """Resumes a stopped campaign with another canary; its conditions (approval, newer worker) apply again."""
    number = _number(request.campaign_id)
    return await campaign_commands.resume_campaign(
        context.engine, context.tenant_id, number, actor=context.actor, reason=request.reason
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise NotFound(f"There is no campaign {text[:80]!r}.", code="campaign_not_found")
    return int(text)


OPERATIONS = (
    plan_campaign,
    start_campaign,
    list_campaigns,
    show_campaign,
    approve_campaign,
    abort_campaign,
    resume_campaign,
)
