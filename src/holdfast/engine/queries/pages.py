"""Pagination of lists that are read from an index: page size, rows read per page, and time limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TypeVar

import asyncpg

from holdfast.core.values.duration import seconds_of
from holdfast.errors import Invalid, Unavailable
from holdfast.store.database import Database, Session
from holdfast.store.sql.schedules import schedules as schedules_sql

T = TypeVar("T")
Cursor = TypeVar("Cursor")

LIMIT_MAX = 10_000
SCAN_ROWS_MAX = 500
"""How many rows of one kind a page reads; at least as many as it may show."""
LOOK_PLAIN = 2
"""Factor of rows read to rows shown for a list without a filter, where nearly all rows match."""
ID_MAX = 2**63 - 1
READ_SECONDS_MAX = 10

_WAYS_ROUND = ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin", "material")
BY_INDEX = "; ".join(["set local jit = off", *(f"set local enable_{way} = off" for way in _WAYS_ROUND)])
"""Settings that force a page to be read along an index until it is full; planner statistics may be out of date."""


Since = str | float | datetime | None
"""The start of a list: a time, or a duration before now."""


async def moment_of(database: Database | Session, since: Since) -> datetime | None:
    """Resolve `since` to a time, by the clock of the database."""
    if since is None or isinstance(since, datetime):
        return since
    if isinstance(since, str) and "-" in since:
        try:
            told = datetime.fromisoformat(since)
        except ValueError:
            raise Invalid(
                f"{since[:80]!r} is not a time.",
                code="invalid_since",
                advice="Write a duration before now, as 2h, or a time, as 2026-11-17T12:00:00+01:00.",
            ) from None
        return told if told.tzinfo is not None else told.astimezone()
    now = await schedules_sql.database_time(database)
    return now - timedelta(seconds=seconds_of(since))


def younger(rows: list[T], born: Callable[[T], datetime], since: datetime | None) -> tuple[list[T], bool]:
    """Return those of the rows (newest first) that are not older than `since`, and whether there were older ones."""
    found = rows if since is None else [row for row in rows if born(row) >= since]
    return found, len(found) < len(rows)


def valid_limit(limit: int) -> int:
    """Return the limit if it is allowed for lists; raise `Invalid` otherwise."""
    if not 1 <= limit <= LIMIT_MAX:
        raise Invalid(f"The limit must be from 1 to {LIMIT_MAX}, not {limit}.", code="invalid_limit")
    return limit


async def full_page(
    page: Callable[[Cursor | None, int], Awaitable[tuple[list[T], Cursor | None]]],
    limit: int,
    begin: Cursor | None = None,
) -> list[T]:
    """Read page after page until there are `limit` rows or no more.

    `page` takes a cursor and a number of rows, and returns the rows and the next cursor.
    """
    rows, following = await page(begin, limit)
    while following is not None and len(rows) < limit:
        more, following = await page(following, limit - len(rows))
        rows += more
    return rows


@asynccontextmanager
async def reading(database: Database) -> AsyncIterator[Session]:
    """Read a page in one snapshot and within a time limit: a selective filter may read much history.

    The access path does not depend on the arguments, so a generic plan is forced: planning took longer than reading the
    page.
    """
    try:
        async with database.transaction() as session:
            await session.execute(
                "set transaction isolation level repeatable read; "
                f"set local statement_timeout = '{READ_SECONDS_MAX}s'; "
                f"set local plan_cache_mode = force_generic_plan; {BY_INDEX}"
            )
            yield session
    except asyncpg.QueryCanceledError:
        raise Unavailable(
            f"Listing took longer than {READ_SECONDS_MAX} s.",
            code="read_too_slow",
            advice="Ask for one state or a smaller limit.",
        ) from None
