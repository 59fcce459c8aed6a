"""Tenants: create, list and limit them, and find the tenant of an engine.

A tenant is never deleted, because every row it wrote has its id. Only the operator of the installation creates and
limits tenants; the changes are recorded in the audit chain of the tenant concerned.
"""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.values import bounds
from holdfast.engine.audit import Change, audit
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.database import Database, Session
from holdfast.store.sql.identity import tenants as tenants_sql

COUNT_MAX = 1_000_000
LIMIT_MAX = 1_000_000_000


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant: id, name, limits on queued and running tasks, and their current numbers."""

    tenant_id: int
    name: str
    created_at: datetime
    max_running: int | None
    max_queued: int | None
    running: int | None = None
    queued: int | None = None


async def find_tenant(database: Database, name: str) -> TenantView:
    """Return the tenant with that name; raise `NotFound` if it does not exist."""
    row = await tenants_sql.find_tenant(database, name)
    if row is None:
        raise await _unknown(database, name)
    return TenantView(**row._asdict())


async def list_tenants(database: Database) -> list[TenantView]:
    """Return every tenant, with its queued tasks (counted up to a bound per lane) and running tasks."""
    return [TenantView(**row._asdict()) for row in await tenants_sql.list_tenants(database, COUNT_MAX)]


async def create_tenant(database: Database, name: str, *, actor: str, reason: str) -> TenantView:
    """Create a tenant; `Conflict` if the name is taken."""
    name = bounds.valid_tenant(name)
    async with database.transaction() as session:
        row = await tenants_sql.create_tenant(session, name)
        if row is None:
            raise Conflict(f"There is a tenant {name} already.", code="tenant_exists", tenant=name)
        made = TenantView(**row._asdict())
        change = Change(verb="tenant.create", subject_kind="tenant", subject_id=name, after={"id": made.tenant_id})
        await audit(session, made.tenant_id, [change], actor=actor, reason=reason)
    return made


async def limit_tenant(
    database: Database,
    name: str,
    *,
    max_running: int | UnsetType | None = UNSET,
    max_queued: int | UnsetType | None = UNSET,
    actor: str,
    reason: str,
) -> TenantView:
    """Set limits of a tenant; None removes one. Tasks that are already running or queued stay.

    A limit that is not given keeps its value, even if another transaction changes it concurrently.
    """
    given = {"max_running": max_running, "max_queued": max_queued}
    named = {what: limit for what, limit in given.items() if limit is not UNSET}
    for what, limit in named.items():
        if isinstance(limit, int) and not 1 <= limit <= LIMIT_MAX:
            raise Invalid(f"{what} must be from 1 to {LIMIT_MAX}, not {limit}.", code="invalid_limit", limit=LIMIT_MAX)
    async with database.transaction() as session:
        row = await tenants_sql.lock_tenant(session, name)
        if row is None:
            raise await _unknown(session, name)
        before = {"max_running": row.max_running, "max_queued": row.max_queued}
        after = {**before, **named}
        if before == after:
            return TenantView(**row._asdict())
        changed = await tenants_sql.limit_tenant(session, row.tenant_id, after["max_running"], after["max_queued"])
        change = Change(verb="tenant.limit", subject_kind="tenant", subject_id=name, before=before, after=after)
        await audit(session, row.tenant_id, [change], actor=actor, reason=reason)
    return TenantView(**changed._asdict())


async def _unknown(source: Database | Session, name: str) -> NotFound:
    names = [row.name for row in await tenants_sql.tenant_names(source)]
    near = get_close_matches(name, names, n=1)
    advice = f"Did you mean {near[0]}?" if near else f"Make it: `holdfast tenant create {name}`."
    return NotFound(f"There is no tenant {name}.", code="tenant_not_found", advice=advice)
