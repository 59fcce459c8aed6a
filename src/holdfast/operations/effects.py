"""Operations on effects: list them, control which actions may send them, and compensate them."""

from __future__ import annotations

import msgspec

from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.effects import authority, gate
from holdfast.engine.effects.authority import AuthorityRule
from holdfast.engine.effects.compensate import Compensation
from holdfast.engine.effects.gate import EffectView
from holdfast.engine.use_cases import tasks as task_use_cases
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import KeyUse, Request, operation
from holdfast.operations.paging import PAGE, Limit, page_of, rows_of
from holdfast.operations.shared_types import ListNames


class ListEffects(Request, frozen=True, kw_only=True):
    """Filters. `after` is the `next` of the previous page."""

    task_id: str | None = None
    state: str | None = None
    after: str | None = None
    limit: Limit = PAGE


class EffectPage(msgspec.Struct, frozen=True, kw_only=True):
    effects: list[EffectView]
    next: str | None


class RuleEffect(Request, frozen=True, kw_only=True):
    """An effect, the action the rule is for (empty: every action without a rule of its own), and the reason."""

    name: str
    action: str = ""
    reason: str = ""


class EffectRuling(msgspec.Struct, frozen=True, kw_only=True):
    effect: str
    action: str
    is_allowed: bool
    is_changed: bool


class RulePage(msgspec.Struct, frozen=True, kw_only=True):
    rules: list[AuthorityRule]
    next: str | None


class Compensate(Request, frozen=True, kw_only=True):
    """The idempotency key of an effect whose task has ended, and the reason to compensate it."""

    idempotency_key: str
    reason: str


class Compensated(msgspec.Struct, frozen=True, kw_only=True):
    """The task that compensates the effect; a repeated request returns the same one."""

    task_id: str
    action: str
    is_new: bool


@operation("effect.list", "GET /api/v1/effects", Access.VIEWER, commands=("effect list", "task retry", "task show"))
async def list_effects(context: OperationContext, request: ListEffects) -> EffectPage:
    """Lists effects, of the newest tasks first."""
    rows, following = await gate.effect_page(
        context.database,
        context.tenant_id,
        task_ids=None if request.task_id is None else [bounds.task_number(request.task_id)],
        state=request.state,
        after=request.after,
        limit=rows_of(request.limit),
    )
    return EffectPage(effects=rows, next=following)


@operation("effect.rules", "GET /api/v1/effects/rules", Access.VIEWER)
async def list_rules(context: OperationContext, request: ListNames) -> RulePage:
    """Lists which actions may send which effects. An effect without a rule is allowed for every action."""
    rows = await authority.rules(context.database, context.tenant_id)
    page, following = page_of(rows, lambda row: f"{row.effect}/{row.action}", request.after, request.limit)
    return RulePage(rules=page, next=following)


@operation("effect.allow", "POST /api/v1/effects/{name}/allow", Access.ADMIN)
async def allow_effect(context: OperationContext, request: RuleEffect) -> EffectRuling:
    """Allows an effect for an action, or for every action without a rule of its own."""
    return await _rule(context, request, is_allowed=True)


@operation("effect.deny", "POST /api/v1/effects/{name}/deny", Access.ADMIN)
async def deny_effect(context: OperationContext, request: RuleEffect) -> EffectRuling:
    """Denies an effect for an action, or for every action without a rule of its own."""
    return await _rule(context, request, is_allowed=False)


async def _rule(context: OperationContext, request: RuleEffect, *, is_allowed: bool) -> EffectRuling:
    is_changed = await authority.rule(
        context.database,
        context.tenant_id,
        request.name,
        request.action,
        is_allowed=is_allowed,
        actor=context.actor,
        reason=request.reason,
    )
    return EffectRuling(effect=request.name, action=request.action, is_allowed=is_allowed, is_changed=is_changed)


@operation("effect.compensate", "POST /api/v1/effects/compensate", Access.OPERATOR, status=202, once=KeyUse.STORED)
async def compensate_effect(context: OperationContext, request: Compensate) -> Compensated:
    """Undoes an effect with the action registered for it, once."""

    def answer(done: Compensation) -> Compensated:
        return Compensated(task_id=done.task_id, action=done.action, is_new=done.is_new)

    done = await task_use_cases.compensate_effect(
        context.engine,
        request.idempotency_key,
        actor=context.actor,
        reason=request.reason,
        once=context.once,
        answer=answer,
    )
    return answer(done)


OPERATIONS = (list_effects, list_rules, allow_effect, deny_effect, compensate_effect)
