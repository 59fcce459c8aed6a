"""Bring the schema up to date: numbered files, forward only, one at a time under an advisory lock.

Each file runs in its own transaction with a short lock timeout, so a live worker is never stopped for long. Code
refuses a schema older than itself; a newer one is compatible with the code before it, by rule.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import TypeVar

from holdfast.errors import Unavailable
from holdfast.store.database import LOCK_CONFLICT, Database, Session

T = TypeVar("T")

LOCK_SECONDS = 5.0
TRIES_MAX = 10
PAUSE_SECONDS = (0.2, 1.0)

_LOCK = 0x686F6C6466617374 >> 1
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")

_LEDGER = """
create schema if not exists holdfast;
create table if not exists holdfast.migration (
  number int primary key,
  name text not null,
  applied_at timestamptz not null default statement_timestamp()
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    number: int
    name: str
    script: str


def known() -> list[Migration]:
    """The migrations this version carries, in order and without gaps."""
    found = sorted(
        (
            Migration(number=int(match[1]), name=match[2], script=file.read_text("utf-8"))
            for file in resources.files("holdfast.store.migrations").iterdir()
            if (match := _FILE.match(file.name))
        ),
        key=lambda migration: migration.number,
    )
    assert [migration.number for migration in found] == list(range(1, len(found) + 1)), "migrations have a gap"
    return found


async def migrate(database: Database) -> list[Migration]:
    """Apply what is missing and return it. Several processes may call this at once: one applies, the others wait."""
    session = await database.connect()
    try:
        applied = [one for one in known() if await _patiently(partial(_apply, session, one))]
        await _patiently(partial(_secure, session))
        return applied
    finally:
        await session.close()


async def _patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Begin a step again that running workers were in the way of: it takes its locks all or none."""
    for left in reversed(range(TRIES_MAX)):
        try:
            return await step()
        except LOCK_CONFLICT:
            if not left:
                raise
        await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
    raise AssertionError("unreachable")


async def _apply(session: Session, migration: Migration) -> bool:
    async with session.transaction():
        await session.fetch("select pg_advisory_xact_lock($1::bigint)", _LOCK)
        await session.execute(_LEDGER)
        if await session.fetchval("select true from holdfast.migration where number = $1", migration.number):
            return False
        await session.execute(f"{_give_way()}; set local statement_timeout = 0")
        await session.execute(migration.script)
        await session.fetch(
            "insert into holdfast.migration (number, name) values ($1, $2)", migration.number, migration.name
        )
        return True


async def _secure(session: Session) -> None:
    """Put what is new behind the walls between tenants; also when only the role for it is new."""
    async with session.transaction():
        await session.fetch("select pg_advisory_xact_lock($1::bigint)", _LOCK)
        await session.execute(f"{_give_way()}; select holdfast.secure_tenants()")


def _give_way() -> str:
    """Wait no longer for a lock: whoever comes meanwhile waits behind us."""
    return f"set local lock_timeout = '{LOCK_SECONDS * 1000:.0f}ms'"


async def schema_version(database: Database) -> int:
    """The newest migration applied; 0 on a database Holdfast has not touched."""
    if not await database.fetchval("select to_regclass('holdfast.migration') is not null"):
        return 0
    return int(await database.fetchval("select coalesce(max(number), 0) from holdfast.migration"))


async def require_current(database: Database) -> None:
    """Refuse to work on a schema older than this code."""
    version = await schema_version(database)
    if version < len(known()):
        raise Unavailable(
            f"The schema is at migration {version}, this version needs {len(known())}.",
            code="schema_outdated",
            advice="Run `holdfast migrate`.",
        )
