"""A temporary database on the server under test, created for one run and dropped after it.

No other database of that server is touched. A server that may lose acknowledged commits is refused: its results would
not be comparable.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from holdfast.errors import Invalid
from holdfast.settings.settings import Settings
from holdfast.store.database import TRANSIENT, Database, unreachable
from holdfast.store.migrate import migrate
from holdfast.store.resolve import resolve_database

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
REPORTED = (*DURABLE, "server_version", "shared_buffers", "max_wal_size", "wal_compression")


async def at_rest(connection: Any) -> None:
    """Run a checkpoint, where permitted, so that writes of the schema do not happen during a measurement.

    Call it before tables are filled: after it, the first change of each page is logged as a whole page.
    """
    with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
        await connection.execute("checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """A database to measure in. `server` holds the server's settings."""

    url: str
    database: str
    server: Mapping[str, str]

    async def fresh(self) -> None:
        """Create an empty schema that is on disk, as the raw ceiling does."""
        async with self.connection() as connection:
            await connection.execute("drop schema if exists holdfast cascade")
            await migrate(Database(self.url))
            await at_rest(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Yield a separate connection, which is not measured."""
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def another_database(self) -> AsyncIterator[str]:
        """Create an empty database on the same server, for an engine with its own schema; drop it afterwards."""
        name = new_name()
        async with self.connection() as connection:
            await connection.execute(f"create database {name}")
        try:
            yield in_database(self.url, name)
        finally:
            async with self.connection() as connection:
                await connection.execute(f"drop database if exists {name} with (force)")

    async def analyze(self, url: str) -> None:
        """Analyze a database, as autovacuum does with one that has existed for a minute."""
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("analyze")
        finally:
            await connection.close()

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        async with self.connection() as connection:
            return list(await connection.fetch(statement, *arguments))

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        rows = await self.fetch(statement, *arguments)
        return rows[0][0] if rows else None


@asynccontextmanager
async def enter(settings: Settings) -> AsyncIterator[Arena]:
    """Create a database on the server of these settings, and drop it on exit."""
    place = await asyncio.to_thread(resolve_database, settings)
    try:
        try:
            admin = await asyncpg.connect(place.url)
        except (*TRANSIENT, asyncpg.PostgresError) as error:
            raise unreachable(place.url, error) from error
        try:
            server = {name: str(await admin.fetchval(f"show {name}")) for name in REPORTED}
            refuse_if_not_durable(server)
            name = new_name()
            await _create(admin, name)
            try:
                yield Arena(url=in_database(place.url, name), database=name, server=server)
            finally:
                await admin.execute(f"drop database if exists {name} with (force)")
        finally:
            await admin.close()
    finally:
        place.close()


def refuse_if_not_durable(server: Mapping[str, str]) -> None:
    """Raise `Invalid` unless an acknowledged commit survives a power failure."""
    off = [name for name in DURABLE if server[name] == "off"]
    if off:
        raise Invalid(
            f"This server is not durable: {', '.join(f'{name} is off' for name in off)}.",
            code="server_not_durable",
            advice=f"Switch {', '.join(off)} on, or point HOLDFAST_URL at another server.",
        )


def new_name() -> str:
    return f"holdfast_bench_{secrets.token_hex(4)}"


def in_database(url: str, name: str) -> str:
    """Return the URL of another database with the same server and user."""
    parts = urlsplit(url)
    query = [(key, value) for key, value in parse_qsl(parts.query) if key not in ("dbname", "database")]
    # Not `parts._replace`: an empty host (a socket given in the query) must keep its `@/`.
    return urlunsplit((parts.scheme, parts.netloc, f"/{quote(name)}", urlencode(query, safe="/"), ""))


async def _create(admin: Any, name: str) -> None:
    try:
        await admin.execute(f"create database {name}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise Invalid(
            "The benchmark makes a database of its own, and this user may not create one.",
            code="cannot_create_database",
            advice="Grant it: `alter role … createdb`, or use another HOLDFAST_URL.",
        ) from error
