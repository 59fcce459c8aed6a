"""Connections to PostgreSQL: a pool of sessions, and sessions of their own.

Promises: no session state is relied on, every session has timeouts, and a failure to reach the server becomes
`Unavailable`. A commit whose answer was lost is an unknown outcome: `Unavailable` with code `outcome_unknown`. A
connection whose user was cancelled is never used again, because a transaction may be open on it.
Never decides whether a write may be repeated: the verbs know that.

A pooler in transaction mode may stand between. It shows itself by refusing start-up parameters: then none are sent,
nothing is prepared unless that is asked for, and only a direct URL can be listened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from holdfast.errors import Unavailable
from holdfast.net.sockets import notice_partitions
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
"""How long a worker waits for an answer. The driver's timer costs a single enqueue a twelfth of its time, so pooled
connections leave it to the server to end a statement that takes for ever."""
STATEMENT_SECONDS_MAX = 600
LOCK_SECONDS_MAX = 30
"""How long a statement waits for somebody else's lock: longer than any transaction of ours takes. Who waits for one
that hangs is told so and tries again, instead of piling up behind it."""

_SERVER_SETTINGS = {
    "application_name": "holdfast",
    "idle_in_transaction_session_timeout": "60s",
    "statement_timeout": f"{STATEMENT_SECONDS_MAX}s",
    "lock_timeout": f"{LOCK_SECONDS_MAX}s",
    "synchronous_commit": "on",
    "jit": "off",
}
"""What every session asks for, unless a pooler refuses it. Commits are waited for, whatever role or database say;
`store/durability.py` looks where that cannot be asked. No statement here is worth compiling: with sequential scans
disabled (below, and for lists) a plan that has one anyway passes every threshold of JIT compilation (up to
PostgreSQL 17),
and a list of thirty tasks took ten seconds on a server with default settings."""
_SAME_PLAN = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
"""For sessions that say the same few statements for ever: planned once, not anew for each of the first five times. And
planned for tables that will not stay as small as they are now: with a handful of rows analysed, 60 of 73 statements of
tests/store/test_plans.py read a hot table from end to end, and a cached plan goes on doing so while the table grows."""


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
        """`repeats_itself`: its sessions say the same few statements for ever, so they are planned once. `patience` is
        that of its transactions, if not the usual."""
        self.outage = outage or Outage("the database")
        """Callers that repeat what failed report it here, so that the log has one line about it."""
        self._server_settings = _SERVER_SETTINGS | (_SAME_PLAN if repeats_itself else {}) | _patience(patience)
        self.patience = patience
        self.url = url
        self.tap = tap
        self.is_pooled = False
        """A pooler showed itself."""
        self.is_utf8 = False
        """Whether every text can be said to it; known once it is open."""
        self.watch = watch or ServerIdentity()
        """Whether its connections still lead to the same server."""
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
        """The same way to the same server, for another event loop or other statements."""
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
        """Whether statements are prepared once per connection."""
        return self._prepare == ON or (self._prepare == AUTO and not self.is_pooled)

    @property
    def can_listen(self) -> bool:
        """Whether a notification would arrive: through a pooler in transaction mode none does."""
        return self._direct_url is not None or not self.is_pooled

    @property
    def use(self) -> PoolUse:
        """How busy this process's connections are."""
        return self._pool.use

    async def connect(self, patience: LockTimeouts | None = None) -> Session:
        """A session of its own, outside the pool: for a worker's exchange and heartbeats."""
        settings = _SERVER_SETTINGS | _SAME_PLAN | _patience(patience)
        connection = await self._connect(command_timeout=COMMAND_SECONDS_MAX, server_settings=settings)
        if patience is not None and self.is_pooled:
            return ScriptedSession(connection, begin_script(patience), self.tap)
        return self._on(connection)

    async def connect_directly(self) -> Session:
        """The same past a pooler, where a direct URL is known: for LISTEN."""
        if self._direct_url is None:
            return await self.connect()
        way = Database(self._direct_url, sessions_max=1, tap=self.tap)
        return await way.connect()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A pooled session. Connection trouble inside becomes `Unavailable`."""
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
        """A pooled session inside one transaction."""
        async with self.session() as session, session.transaction():
            yield session

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        """One statement in its own transaction."""
        return await self._alone(Session.fetch, statement, arguments)

    async def fetch_prepared(self, statement: str, *arguments: Any) -> list[Any]:
        """The same for a statement that comes thousands of times a second: prepared once per connection."""
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
            # A migration changed what it reads; nothing ran. The driver's own cache knows how to begin anew.
            statements.clear()
            return await session.fetch(statement, *arguments)

    async def _alone(
        self, use: Callable[..., Awaitable[list[Any]]], statement: str, arguments: tuple[Any, ...]
    ) -> list[Any]:
        # Spelled out rather than built on `session`: enqueues come this way.
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
            # What the caller looked up before it waited was another server's.
            self._pool.release(connection)
            raise server_changed()
        return connection

    async def _connect(self, **options: Any) -> Any:
        options = {"timeout": CONNECT_SECONDS_MAX, "server_settings": self._server_settings} | options
        try:
            connection = await self._connected(options)
        except (*CONNECTION_LOST, TimeoutError, asyncpg.PostgresError, ValueError, OverflowError) as error:
            raise unreachable(self.url, error) from error
        notice_partitions(connection._transport.get_extra_info("socket"))
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
            # Of several hosts the one that accepts writes: after a failover that is another one.
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
    """The same as settings of a connection; a pooler that refuses those is sent them with every transaction."""
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
