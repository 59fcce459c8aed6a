"""Connections to PostgreSQL: a pool of sessions, and dedicated sessions.

No code relies on session state, every session has timeouts, and a failure to reach the server becomes `Unavailable`. A
commit whose response was lost is an unknown outcome: `Unavailable` with code `outcome_unknown`. A connection whose user
was cancelled is never used again, because a transaction may be open on it. This module never decides whether a write
may be repeated; the callers know that.

A pooler in transaction mode may be in between. It is detected by its refusal of start-up parameters: then none are
sent, statements are prepared only on request, and LISTEN needs a direct URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from holdfast.errors import Unavailable
from holdfast.net.sockets import detect_partitions
from holdfast.store.errors import (
    ANY_DB_ERROR,
    BAD_CREDENTIALS,
    CONNECTION_LOST,
    KEY_TAKEN,
    LOCK_CONFLICT,
    LOCK_TIMEOUT,
    NAME_TAKEN,
    READ_ONLY,
    REFUSED,
    STILL_USED,
    TRANSIENT,
    UNFIT,
    is_refusal,
    outcome_unknown,
    read_only,
    unreachable,
    without_password,
)
from holdfast.store.outage import Outage
from holdfast.store.pool import Pool, PoolUse
from holdfast.store.server_identity import ServerIdentity, server_changed
from holdfast.store.session import LockTimeouts, ScriptedSession, Session, Tap, begin_script

__all__ = [
    "ANY_DB_ERROR",
    "BAD_CREDENTIALS",
    "CONNECTION_LOST",
    "KEY_TAKEN",
    "LOCK_CONFLICT",
    "LOCK_TIMEOUT",
    "MINIMUM_VERSION",
    "NAME_TAKEN",
    "READ_ONLY",
    "REFUSED",
    "STILL_USED",
    "TRANSIENT",
    "UNFIT",
    "Database",
    "LockTimeouts",
    "Session",
    "Tap",
    "is_refusal",
    "outcome_unknown",
    "unreachable",
    "without_password",
]

MINIMUM_VERSION = 150000
CONNECT_SECONDS_MAX = 10.0
COMMAND_SECONDS_MAX = 60
"""How long a worker waits for a response. The driver's timer costs a single enqueue a twelfth of its time, so pooled
connections rely on the server's statement timeout instead."""
STATEMENT_SECONDS_MAX = 600
LOCK_SECONDS_MAX = 30
"""How long a statement waits for a lock: longer than any of our transactions takes. A statement that waits for a
hanging transaction fails and is repeated, instead of queueing up behind it."""

_SERVER_SETTINGS = {
    "application_name": "holdfast",
    "idle_in_transaction_session_timeout": "60s",
    "statement_timeout": f"{STATEMENT_SECONDS_MAX}s",
    "lock_timeout": f"{LOCK_SECONDS_MAX}s",
    "synchronous_commit": "on",
    "jit": "off",
}
"""Settings of every session, unless a pooler refuses them. Commits are synchronous, whatever the role or database sets;
`store/durability.py` checks where that cannot be requested. JIT is off because no statement here is worth compiling:
with sequential scans disabled (below, and for lists), a plan that has one anyway exceeds every threshold of JIT
compilation (up to PostgreSQL 17), and a list of thirty tasks took ten seconds on a server with default settings."""
_SAME_PLAN = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
"""For sessions that repeat the same few statements: plan once, not again for each of the first five executions. Plans
must also suit tables that will grow: with a handful of analysed rows, 60 of 73 statements of tests/store/test_plans.py
read a hot table from end to end, and a cached plan would keep doing so."""


_POOLED_SETTINGS = {"application_name": "holdfast"}
AUTO, ON, OFF = "auto", "on", "off"
"""Whether statements are prepared once per connection."""


class Database:
    """A pool of sessions on one PostgreSQL. Open it once per process and event loop."""

    def __init__(
        self,
        url: str,
        *,
        sessions_max: int = 10,
        tap: Tap | None = None,
        direct_url: str | None = None,
        prepare: str = AUTO,
        repeats_itself: bool = False,
        patience: LockTimeouts | None = None,
        outage: Outage | None = None,
        watch: ServerIdentity | None = None,
    ) -> None:
        """Create the pool. `repeats_itself`: its sessions repeat the same few statements, so they are planned once.
        `patience` overrides the timeouts of its transactions."""
        self.outage = outage or Outage("the database")
        """Callers that repeat failed work report it here, so that the log has one line per outage."""
        self._server_settings = _SERVER_SETTINGS | (_SAME_PLAN if repeats_itself else {}) | _patience(patience)
        self.patience = patience
        self.url = url
        self.tap = tap
        self.is_pooled = False
        """Whether a pooler was detected."""
        self.is_utf8 = False
        """Whether the database can store every text; set when it is opened."""
        self.watch = watch or ServerIdentity()
        """Tracks whether its connections still lead to the same server."""
        self._direct_url = direct_url
        self._prepare = prepare
        self._pool = Pool(self._connect, sessions_max)
        self._prepared: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._is_open = False

    async def open(self) -> Database:
        connection = await self._acquire()
        try:
            _check_version(connection.get_server_version())
            self.is_utf8 = self._on(connection).is_utf8
        finally:
            self._pool.release(connection)
        self._is_open = True
        return self

    async def close(self) -> None:
        self._is_open = False
        await self._pool.close()

    def apart(
        self, *, sessions_max: int = 10, repeats_itself: bool = False, patience: LockTimeouts | None = None
    ) -> Database:
        """Return another pool to the same server, for another event loop or other statements."""
        return Database(
            self.url,
            sessions_max=sessions_max,
            direct_url=self._direct_url,
            prepare=self._prepare,
            repeats_itself=repeats_itself,
            patience=patience,
            outage=self.outage,
            watch=ServerIdentity(self.watch.look),
        )

    @property
    def prepares(self) -> bool:
        """Return whether statements are prepared once per connection."""
        return self._prepare == ON or (self._prepare == AUTO and not self.is_pooled)

    @property
    def can_listen(self) -> bool:
        """Return whether notifications can arrive: through a pooler in transaction mode they do not."""
        return self._direct_url is not None or not self.is_pooled

    @property
    def use(self) -> PoolUse:
        """Return how busy this process's connections are."""
        return self._pool.use

    async def connect(self, patience: LockTimeouts | None = None) -> Session:
        """Open a dedicated session outside the pool, for a worker's exchanges and heartbeats."""
        settings = _SERVER_SETTINGS | _SAME_PLAN | _patience(patience)
        connection = await self._connect(command_timeout=COMMAND_SECONDS_MAX, server_settings=settings)
        if patience is not None and self.is_pooled:
            return ScriptedSession(connection, begin_script(patience), self.tap)
        return self._on(connection)

    async def connect_directly(self) -> Session:
        """Open a dedicated session that bypasses a pooler, if a direct URL is configured: for LISTEN."""
        if self._direct_url is None:
            return await self.connect()
        way = Database(self._direct_url, sessions_max=1, tap=self.tap)
        return await way.connect()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Yield a pooled session. Connection errors inside become `Unavailable`."""
        connection = await self._acquire()
        try:
            yield self._on(connection)
        except CONNECTION_LOST as error:
            connection.terminate()
            raise outcome_unknown(error) from error
        except READ_ONLY as error:
            # The next connection may lead to the server that is the primary by then.
            connection.terminate()
            raise read_only(error) from error
        except asyncio.CancelledError:
            connection.terminate()
            raise
        finally:
            self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Yield a pooled session inside one transaction."""
        async with self.session() as session, session.transaction():
            yield session

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        """Run one statement in its own transaction."""
        return await self._alone(Session.fetch, statement, arguments)

    async def fetch_prepared(self, statement: str, *arguments: Any) -> list[Any]:
        """Run one statement like `fetch`, prepared once per connection: for statements run thousands of times a
        second."""
        return await self._alone(self._fetch_prepared, statement, arguments)

    async def _fetch_prepared(self, session: Session, statement: str, *arguments: Any) -> list[Any]:
        if self.tap is not None or not self.prepares:
            return await session.fetch(statement, *arguments)
        statements = self._prepared.setdefault(session.connection, {})
        try:
            if (prepared := statements.get(statement)) is None:
                prepared = statements[statement] = await session.connection.prepare(statement)
            return await prepared.fetch(*arguments)  # type: ignore[no-any-return]
        except asyncpg.InvalidCachedStatementError:
            # A migration changed what the statement reads; nothing ran. The driver's own statement cache recovers.
            statements.clear()
            return await session.fetch(statement, *arguments)

    async def _alone(
        self, use: Callable[..., Awaitable[list[Any]]], statement: str, arguments: tuple[Any, ...]
    ) -> list[Any]:
        # Spelled out instead of using `session`, because this is the enqueue path.
        connection = self._pool.take() or await self._acquire()
        try:
            return await use(self._on(connection), statement, *arguments)
        except CONNECTION_LOST as error:
            connection.terminate()
            raise outcome_unknown(error) from error
        except READ_ONLY as error:
            # The next connection may lead to the server that is the primary by then.
            connection.terminate()
            raise read_only(error) from error
        except asyncio.CancelledError:
            connection.terminate()
            raise
        finally:
            self._pool.release(connection)

    async def fetchrow(self, statement: str, *arguments: Any) -> Any:
        rows = await self.fetch(statement, *arguments)
        return rows[0] if rows else None

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        rows = await self.fetch(statement, *arguments)
        return rows[0][0] if rows else None

    def _on(self, connection: Any) -> Session:
        if self.patience is not None and self.is_pooled:
            return ScriptedSession(connection, begin_script(self.patience), self.tap)
        return Session(connection, self.tap)

    async def _acquire(self) -> Any:
        changes = self.watch.changes
        try:
            connection = await self._pool.acquire(seconds_max=CONNECT_SECONDS_MAX)
        except TimeoutError as error:
            raise Unavailable(
                "Every connection of this process is busy.", code="pool_exhausted", advice="Try again."
            ) from error
        if self.watch.changes != changes:
            # What the caller read before it waited came from another server.
            self._pool.release(connection)
            raise server_changed()
        return connection

    async def _connect(self, **options: Any) -> Any:
        options = {"timeout": CONNECT_SECONDS_MAX, "server_settings": self._server_settings} | options
        try:
            connection = await self._connected(options)
        except (*CONNECTION_LOST, TimeoutError, asyncpg.PostgresError, ValueError, OverflowError) as error:
            raise unreachable(self.url, error) from error
        detect_partitions(connection._transport.get_extra_info("socket"))
        try:
            await self.watch.greet(Session(connection))
        except BaseException as error:
            connection.terminate()
            if isinstance(error, (*CONNECTION_LOST, TimeoutError, asyncpg.PostgresError)):
                raise unreachable(self.url, error) from error
            raise
        return connection

    async def _connected(self, options: dict[str, Any]) -> Any:
        if "," in self.url and "target_session_attrs" not in self.url:
            # Of several hosts, use the one that accepts writes: after a failover that is another one.
            options = options | {"target_session_attrs": "read-write"}
        if not self.is_pooled:
            try:
                return await asyncpg.connect(self.url, **options, **self._unprepared())
            except asyncpg.ProtocolViolationError as error:
                if "startup parameter" not in str(error):
                    raise
                self.is_pooled = True
        return await asyncpg.connect(
            self.url, **(options | {"server_settings": _POOLED_SETTINGS}), **self._unprepared()
        )

    def _unprepared(self) -> dict[str, int]:
        return {} if self.prepares else {"statement_cache_size": 0}


def _patience(patience: LockTimeouts | None) -> dict[str, str]:
    """Return lock timeouts as connection settings. A pooler that refuses settings gets them with every transaction
    instead."""
    if patience is None:
        return {}
    given = ("lock_timeout", patience.lock_seconds), ("idle_in_transaction_session_timeout", patience.idle_seconds)
    return {name: f"{max(1, round(seconds * 1000))}ms" for name, seconds in given}


def _check_version(version: Any) -> None:
    if version.major < MINIMUM_VERSION // 10000:
        raise Unavailable(
            f"PostgreSQL {version.major} is too old.",
            code="database_too_old",
            advice="Holdfast needs PostgreSQL 15 or newer.",
        )
