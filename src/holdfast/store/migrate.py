"""Migrations: the schema as migration 1, then numbered files, forward only.

Migration 1 is all files of `schema/` together; later ones are single files in `migrations/`. Each runs in its own
transaction under an advisory lock, with a short lock timeout, so a running worker is never blocked for long. A process
refuses a schema older than its code; a newer schema is compatible with the release before it, by rule.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
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


def known(later: Traversable | None = None) -> list[Migration]:
    """Return the migrations of this version, in order and without gaps; `later` is the folder of those after the
    first."""
    store = resources.files("holdfast.store")
    files = sorted((store / "schema").iterdir(), key=lambda file: file.name)
    schema = "\n".join(file.read_text("utf-8") for file in files if file.name.endswith(".sql"))
    found = [
        Migration(number=1, name="schema", script=schema),
        *sorted(
            (
                Migration(number=int(match[1]), name=match[2], script=file.read_text("utf-8"))
                for file in (later or store / "migrations").iterdir()
                if (match := _FILE.match(file.name))
            ),
            key=lambda migration: migration.number,
        ),
    ]
    assert [migration.number for migration in found] == list(range(1, len(found) + 1)), "migrations have a gap"
    return found


async def migrate(database: Database, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply the missing migrations and return them.

    Several processes may call this concurrently: one applies, the others wait.
    """
    session = await database.connect()
    try:
        wanted = known() if migrations is None else migrations
        applied = [migration for migration in wanted if await _with_retries(partial(_apply, session, migration))]
        await _with_retries(partial(_secure, session))
        return applied
    finally:
        await session.close()


async def _with_retries(step: Callable[[], Awaitable[T]]) -> T:
    """Repeat a step that could not get its locks because of running workers: it takes all of them or none."""
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
    """Apply row-level security to new tables; also needed when only the tenant role is new."""
    async with session.transaction():
        await session.fetch("select pg_advisory_xact_lock($1::bigint)", _LOCK)
        await session.execute(f"{_give_way()}; select holdfast.secure_tenants()")


def _give_way() -> str:
    """Limit the wait for a lock, because every other transaction queues up behind a waiting one."""
    return f"set local lock_timeout = '{LOCK_SECONDS * 1000:.0f}ms'"


async def schema_version(database: Database) -> int:
    """Return the newest applied migration; 0 on a database without Holdfast's schema."""
    if not await database.fetchval("select to_regclass('holdfast.migration') is not null"):
        return 0
    return int(await database.fetchval("select coalesce(max(number), 0) from holdfast.migration"))


async def require_current(database: Database) -> None:
    """Raise `Unavailable` if the schema is older than this code."""
    version = await schema_version(database)
    if version < len(known()):
        raise Unavailable(
            f"The schema is at migration {version}, this version needs {len(known())}.",
            code="schema_outdated",
            advice="Run `holdfast migrate`.",
        )
