"""Operations on webhooks, which deliver events. For administrators, because events leave the installation."""

from __future__ import annotations

import msgspec

from holdfast.core.identity.access import Access
from holdfast.engine.webhooks import commands as webhook_commands
from holdfast.engine.webhooks.commands import GRACE_SECONDS, NewSecret, Tested, WebhookView
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import page_of
from holdfast.operations.shared_types import ListNames, NameAndReason, NameRequest


class AddWebhook(Request, frozen=True, kw_only=True):
    """A name, a URL or `reporter:module:factory`, and which events to deliver; all by default."""

    name: str
    url: str
    kinds: list[str] = msgspec.field(default_factory=list)
    queues: list[str] = msgspec.field(default_factory=list)
    actions: list[str] = msgspec.field(default_factory=list)
    reason: str = ""


class WebhookPage(msgspec.Struct, frozen=True, kw_only=True):
    webhooks: list[WebhookView]
    next: str | None


class RotateWebhook(NameAndReason, frozen=True, kw_only=True):
    """During the grace time, deliveries are signed with both secrets."""

    grace_seconds: float = GRACE_SECONDS


class ResumeWebhook(NameAndReason, frozen=True, kw_only=True):
    """`from_now` skips the events of the pause."""

    from_now: bool = False


class WebhookSteered(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_changed: bool = True


@operation("webhook.add", "POST /api/v1/webhooks", Access.ADMIN, status=201)
async def add_webhook(context: OperationContext, request: AddWebhook) -> NewSecret:
    """Delivers events from now on to a URL. Only this response contains the signing secret; a reporter has none."""
    return await webhook_commands.add_webhook(
        context.engine,
        context.tenant_id,
        request.name,
        request.url,
        kinds=request.kinds,
        queues=request.queues,
        actions=request.actions,
        actor=context.actor,
        reason=request.reason,
    )


@operation("webhook.list", "GET /api/v1/webhooks", Access.OPERATOR)
async def list_webhooks(context: OperationContext, request: ListNames) -> WebhookPage:
    """Lists webhooks with their status."""
    rows = await webhook_commands.list_webhooks(context.database, context.tenant_id)
    page, following = page_of(rows, lambda row: row.name, request.after, request.limit)
    return WebhookPage(webhooks=page, next=following)


@operation("webhook.show", "GET /api/v1/webhooks/{name}", Access.OPERATOR)
async def show_webhook(context: OperationContext, request: NameRequest) -> WebhookView:
    """Shows one webhook."""
    return await webhook_commands.show_webhook(context.database, context.tenant_id, request.name)


@operation("webhook.remove", "DELETE /api/v1/webhooks/{name}", Access.ADMIN)
async def remove_webhook(context: OperationContext, request: NameAndReason) -> WebhookSteered:
    """Removes a webhook and stops its deliveries."""
    await webhook_commands.remove_webhook(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )
    return WebhookSteered(name=request.name)


@operation("webhook.test", "POST /api/v1/webhooks/{name}/test", Access.ADMIN)
async def test_webhook(context: OperationContext, request: NameAndReason) -> Tested:
    """Sends a test event now, and returns the response."""
    return await webhook_commands.try_webhook(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )


@operation("webhook.rotate", "POST /api/v1/webhooks/{name}/rotate", Access.ADMIN)
async def rotate_webhook(context: OperationContext, request: RotateWebhook) -> NewSecret:
    """Creates another signing secret, which only this response contains."""
    return await webhook_commands.rotate_webhook(
        context.engine,
        context.tenant_id,
        request.name,
        grace_seconds=request.grace_seconds,
        actor=context.actor,
        reason=request.reason,
    )


@operation("webhook.pause", "POST /api/v1/webhooks/{name}/pause", Access.OPERATOR)
async def pause_webhook(context: OperationContext, request: NameAndReason) -> WebhookSteered:
    """Pauses deliveries; events of the pause are delivered later."""
    is_changed = await webhook_commands.pause_webhook(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )
    return WebhookSteered(name=request.name, is_changed=is_changed)


@operation("webhook.resume", "POST /api/v1/webhooks/{name}/resume", Access.OPERATOR)
async def resume_webhook(context: OperationContext, request: ResumeWebhook) -> WebhookSteered:
    """Resumes deliveries where they stopped."""
    is_changed = await webhook_commands.resume_webhook(
        context.engine,
        context.tenant_id,
        request.name,
        from_now=request.from_now,
        actor=context.actor,
        reason=request.reason,
    )
    return WebhookSteered(name=request.name, is_changed=is_changed)


OPERATIONS = (
    add_webhook,
    list_webhooks,
    show_webhook,
    remove_webhook,
    test_webhook,
    rotate_webhook,
    pause_webhook,
    resume_webhook,
)
