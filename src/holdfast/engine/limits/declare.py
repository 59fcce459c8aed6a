"""Store the breakers and quotas that a worker declares for its actions. The last declaration wins.

Nothing is written if nothing changed, so all workers of a fleet may declare the same, and an open breaker stays open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.engine.engine import Engine
from holdfast.engine.limits.quotas import set_quota
from holdfast.store.sql.limits import guards as guards_sql

ACTOR = "declaration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The breaker and quota of an action."""

    breaker: Breaker | None = None
    quota: Quota | None = None


async def declare_guards(engine: Engine, tenant_id: int, guards: Mapping[str, Guards]) -> None:
    """Store the breakers and quotas of these actions, and delete those that they no longer declare."""
    rows = await guards_sql.read_guarded(engine.database, tenant_id, list(guards))
    known = {row.action: (row.has_breaker, row.has_quota) for row in rows}
    for action, guard in guards.items():
        has_breaker, has_quota = known.get(action, (False, False))
        if guard.breaker is not None:
            await _declare_breaker(engine, tenant_id, action, guard.breaker)
        elif has_breaker:
            await guards_sql.delete_breaker(engine.database, tenant_id, action)
        if guard.quota is not None or has_quota:
            await set_quota(engine, tenant_id, guard.quota, action=action, actor=ACTOR, reason="")


async def _declare_breaker(engine: Engine, tenant_id: int, action: str, breaker: Breaker) -> None:
    await guards_sql.declare_breaker(
        engine.database,
        tenant_id,
        action,
        breaker.share,
        breaker.attempts_min,
        breaker.window_seconds,
        breaker.open_seconds,
        breaker.trials,
    )
