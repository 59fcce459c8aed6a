"""Authority: which action may perform which effect. An effect without a rule is open to all; rules are audited."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.core.values import bounds
from holdfast.engine.audit import Change, audit
from holdfast.store.database import Database
from holdfast.store.sql.effects import effects as effects_sql

EVERY_ACTION = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRule:
    """One rule. An empty `action` applies to every action that has no rule of its own."""

    effect: str
    action: str
    is_allowed: bool
    actor: str
    reason: str
    decided_at: datetime


async def rule(
    database: Database,
    tenant_id: int,
    effect: str,
    action: str = EVERY_ACTION,
    *,
    is_allowed: bool,
    actor: str,
    reason: str,
) -> bool:
    """Allow or deny an effect to one action or to every action. Return False if the rule existed already."""
    bounds.valid_effect(effect)
    if action != EVERY_ACTION:
        bounds.valid_action(action)
    async with database.transaction() as session:
        row = await effects_sql.set_authority(session, tenant_id, effect, action, is_allowed, actor, reason)
        if row is None:
            return False
        change = Change(
            verb="effect.allow" if is_allowed else "effect.deny",
            subject_kind="effect",
            subject_id=effect,
            before=None if row.is_first else {"action": action, "is_allowed": not is_allowed},
            after={"action": action, "is_allowed": is_allowed},
        )
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return True


async def rules(database: Database, tenant_id: int, *, effect: str | None = None) -> list[AuthorityRule]:
    """Return every rule, or those on one effect."""
    return [AuthorityRule(**row._asdict()) for row in await effects_sql.list_authority(database, tenant_id, effect)]
