"""Sessions for one tenant: every transaction, even of a single statement, runs under row-level security as that tenant.

The script that begins the transaction sets role and tenant, in the same round trip, and both end with it. No state
stays on the connection, so the pool is shared with the engine, and a transaction-pooling proxy may be in between. If
the role cannot be set, nothing runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from holdfast.errors import Unavailable
from holdfast.store.database import Database, Session
from holdfast.store.session import LockTimeouts, ScriptedSession, begin_script

TENANT_ROLE = "holdfast_tenant"

_NO_ROLE = (asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedObjectError)


class TenantSession(ScriptedSession):
    """A session whose every transaction begins by setting the tenant role."""

    __slots__ = ()

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        if self.is_in_transaction():
            return await super().fetch(statement, *arguments)
        async with self.transaction():
            return await super().fetch(statement, *arguments)

    fetch_prepared = fetch

    async def execute(self, script: str) -> None:
        if self.is_in_transaction():
            await super().execute(script)
            return
        async with self.transaction():
            await super().execute(script)

    async def copy(self, schema: str, table: str, columns: list[str], records: list[tuple[Any, ...]]) -> None:
        if self.is_in_transaction():
            await super().copy(schema, table, columns, records)
            return
        async with self.transaction():
            await super().copy(schema, table, columns, records)

    async def _enter(self, begin: str, *, is_inner: bool) -> None:
        try:
            await self.connection.execute(begin)
        except _NO_ROLE as error:
            await self._undo("rollback", error)
            if is_inner:
                raise
            raise Unavailable(
                f"The database has no role that keeps tenants apart: {error}.",
                code="tenant_role_missing",
                advice="Run `holdfast doctor`; it says what an administrator of the database has to do.",
            ) from error
        except BaseException as error:
            await self._undo("rollback", error)
            raise


class TenantDatabase(Database):
    """The sessions of another database, each restricted to one tenant."""

    def __init__(self, whole: Database, tenant_id: int, *, is_apart: bool = False) -> None:
        vars(self).update(vars(whole))
        self._whole = whole
        self._is_apart = is_apart
        self.tenant_id = tenant_id
        # The script has no query, so the isolation level can still be set.
        role = f"set local role {TENANT_ROLE}; set local holdfast.tenant_id = '{int(tenant_id)}'"
        self._begin = f"begin; {role}" if whole.patience is None else f"{begin_script(whole.patience)}; {role}"

    @property
    def prepares(self) -> bool:
        return self._whole.prepares

    @property
    def can_listen(self) -> bool:
        return self._whole.can_listen

    def apart(
        self, *, sessions_max: int = 10, repeats_itself: bool = False, patience: LockTimeouts | None = None
    ) -> Database:
        whole = self._whole.apart(sessions_max=sessions_max, repeats_itself=repeats_itself, patience=patience)
        return TenantDatabase(whole, self.tenant_id, is_apart=True)

    async def connect(self, patience: LockTimeouts | None = None) -> Session:
        """Open a dedicated session, also restricted to the tenant. It keeps the tenant's begin script, whatever
        `patience` is."""
        return self._on((await super().connect(patience)).connection)

    async def open(self) -> Database:
        return self

    async def close(self) -> None:
        """Close only what is not shared with the parent database."""
        if self._is_apart:
            await self._whole.close()

    def _on(self, connection: Any) -> Session:
        return TenantSession(connection, self._begin, self.tap)

    async def _alone(
        self, use: Callable[..., Awaitable[list[Any]]], statement: str, arguments: tuple[Any, ...]
    ) -> list[Any]:
        async with self.session() as session, session.transaction():
            return await use(session, statement, *arguments)
