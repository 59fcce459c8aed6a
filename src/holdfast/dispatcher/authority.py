"""Authority: which action may do which effect. An effect nobody ruled on is open to all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.core import limits
from holdfast.store.database import Database
from holdfast.store.statements import sql

_RULE_AUTHORITY = sql("rule_authority")
_LIST_AUTHORITY = sql("list_authority")

EVERY_ACTION = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRule:
    """One ruling. `action` is empty where it is about every action that has none of its own."""

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
    """Allow or deny an effect to one action or to every action; False if that was so already."""
    limits.valid_effect(effect)
    if action != EVERY_ACTION:
        limits.valid_action(action)
    asked = (tenant_id, effect, action, is_allowed, actor, reason[: limits.REASON_CHARACTERS_MAX])
    return bool(await database.fetch(_RULE_AUTHORITY, *asked))


async def rules(database: Database, tenant_id: int, *, effect: str | None = None) -> list[AuthorityRule]:
    """Every ruling, or those on one effect."""
    return [AuthorityRule(**dict(row)) for row in await database.fetch(_LIST_AUTHORITY, tenant_id, effect)]
