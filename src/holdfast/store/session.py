"""A session: one connection that runs SQL statements, and its transactions.

A connection is closed if the asyncio task that uses it is cancelled, because a statement or transaction may be open on
it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.store.errors import CONNECTION_LOST, TRANSIENT

_Row = TypeVar("_Row")


class Tap(Protocol):
    """Observes every statement of a session; the crash tests kill the process there.

    A tap that raises `OSError` simulates a broken connection: before the statement was sent, or before its response
    arrived.
    """

    def before(self, statement: str) -> None: ...

    def after(self, statement: str) -> None: ...


class Queryable(Protocol):
    """Anything that can run a statement: a session, or a database, which uses one of its sessions."""

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]: ...

    async def fetch_prepared(self, statement: str, *arguments: Any) -> list[Any]: ...


class Session:
    """One connection that runs SQL statements."""

    __slots__ = ("connection", "tap")

    def __init__(self, connection: Any, tap: Tap | None = None) -> None:
        self.connection = connection
        self.tap = tap

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        if self.tap is None:
            return await self.connection.fetch(statement, *arguments)  # type: ignore[no-any-return]
        with self._tapped(self.tap, statement):
            return await self.connection.fetch(statement, *arguments)  # type: ignore[no-any-return]

    fetch_prepared = fetch
    """The same as `fetch`: only a `Database` keeps prepared statements."""

    async def fetchrow(self, statement: str, *arguments: Any) -> Any:
        rows = await self.fetch(statement, *arguments)
        return rows[0] if rows else None

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        rows = await self.fetch(statement, *arguments)
        return rows[0][0] if rows else None

    async def execute(self, script: str) -> None:
        if self.tap is None:
            await self.connection.execute(script)
            return
        with self._tapped(self.tap, script):
            await self.connection.execute(script)

    async def copy(self, schema: str, table: str, columns: list[str], records: list[tuple[Any, ...]]) -> None:
        """Copy records into a table with COPY. The driver quotes the names."""
        where = {"schema_name": schema, "columns": columns, "records": records}
        if self.tap is None:
            await self.connection.copy_records_to_table(table, **where)
            return
        with self._tapped(self.tap, f"-- holdfast: copy to {table}"):
            await self.connection.copy_records_to_table(table, **where)

    @contextmanager
    def _tapped(self, tap: Tap, statement: str) -> Iterator[None]:
        try:
            tap.before(statement)
            yield
            tap.after(statement)
        except OSError:
            self.connection.terminate()
            raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commit on exit, roll back on any exception. `before`/`after` of the tap also see the commit."""
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            yield
        except BaseException as error:
            await self._roll_back(transaction, error)
            raise
        if self.tap is None:
            await transaction.commit()
            return
        with self._tapped(self.tap, "commit"):
            await transaction.commit()

    async def _roll_back(self, transaction: Any, error: BaseException) -> None:
        if self.connection.is_closed():
            return
        try:
            # After a cancellation a statement may still be running: close the connection instead of waiting.
            if isinstance(error, Exception):
                await transaction.rollback()
                return
        except CONNECTION_LOST:
            pass
        self.connection.terminate()

    @property
    def is_utf8(self) -> bool:
        """Return whether the database can store every text: one in another encoding lacks most characters."""
        return bool(self.connection.get_settings().server_encoding == "UTF8")

    def is_in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    def is_closed(self) -> bool:
        return bool(self.connection.is_closed())

    async def close(self) -> None:
        try:
            await self.connection.close(timeout=2)
        except TRANSIENT:
            self.connection.terminate()


class LockTimeouts(NamedTuple):
    """How long a transaction waits for a lock, and how long it may stay idle while it has locks."""

    lock_seconds: float
    idle_seconds: float


def begin_script(patience: LockTimeouts) -> str:
    """Return the script that begins a transaction with these timeouts."""
    settings = ("lock_timeout", patience.lock_seconds), ("idle_in_transaction_session_timeout", patience.idle_seconds)
    return "begin; " + "; ".join(f"set local {name} = {max(1, round(seconds * 1000))}" for name, seconds in settings)


class ScriptedSession(Session):
    """A session whose transactions begin with a script, in the same round trip: for settings that last until their end,
    where no state may stay on the connection."""

    __slots__ = ("_begin",)

    def __init__(self, connection: Any, begin: str, tap: Tap | None = None) -> None:
        super().__init__(connection, tap)
        self._begin = begin

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commit on exit, roll back on any exception; inside another transaction, use a savepoint."""
        is_inner = self.is_in_transaction()
        begin, commit, undo = _INNER if is_inner else (self._begin, "commit", "rollback")
        await self._enter(begin, is_inner=is_inner)
        try:
            yield
        except BaseException as error:
            await self._undo(undo, error)
            raise
        if self.tap is None or is_inner:
            await self.connection.execute(commit)
            return
        with self._tapped(self.tap, commit):
            await self.connection.execute(commit)

    async def _enter(self, begin: str, *, is_inner: bool) -> None:
        """Begin. If that fails, roll back everything, because even a savepoint fails only in a broken transaction."""
        try:
            await self.connection.execute(begin)
        except BaseException as error:
            await self._undo("rollback", error)
            raise

    async def _undo(self, script: str, error: BaseException) -> None:
        if self.connection.is_closed():
            return
        try:
            # After a cancellation a statement may still be running: close the connection instead of waiting.
            if isinstance(error, Exception):
                await self.connection.execute(script)
                return
        except CONNECTION_LOST:
            pass
        self.connection.terminate()


_INNER = (
    "savepoint inner_part",
    "release savepoint inner_part",
    "rollback to savepoint inner_part; release inner_part",
)


def first(rows: Sequence[_Row]) -> _Row | None:
    """Return the first row, if there is one."""
    return rows[0] if rows else None
