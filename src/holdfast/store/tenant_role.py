"""The role that separates tenants: whether it exists, and what an administrator runs if it does not.

The schema's owner creates the role during migration, if it may. On a managed database an ordinary role may not create
roles; then an administrator runs the statements that this module returns, once per server.
"""

from __future__ import annotations

from holdfast.errors import Unavailable
from holdfast.store.database import Database
from holdfast.store.sql.queries import checkup as checkup_sql


def statements_missing(*, has_role: bool, may_become: bool, role: str) -> list[str]:
    """Return the SQL that an administrator of the database has to run, in order; empty if nothing is missing."""
    missing = [] if has_role else ["create role holdfast_tenant nologin;"]
    return missing if may_become else [*missing, f'grant holdfast_tenant to "{role}";']


async def missing_statements(database: Database) -> list[str]:
    """Return the missing statements of a database, for its current role."""
    row = await checkup_sql.tenant_role(database)
    return statements_missing(has_role=row.has_role, may_become=row.may_become, role=row.me)


async def require_tenant_role(database: Database) -> None:
    """Raise `Unavailable` if the tenant role is missing: every HTTP request would fail, because each runs as that
    role."""
    if missing := await missing_statements(database):
        raise Unavailable(
            "This database role cannot become holdfast_tenant, as which every HTTP request runs.",
            code="tenant_role_missing",
            advice=f"As an administrator of the database run: {' '.join(missing)} Then run `holdfast migrate`.",
        )
