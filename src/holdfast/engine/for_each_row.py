"""One by one: a pass over rows that have nothing to do with each other, each in a transaction of its own.

What the server refuses for one row, or what cannot be read of it, is logged and left for the next pass; the others have
their turn all the same. When there is no server the pass ends. `for_each_row` is for rows that a pass does away with,
`all_in_turn` for those that stay whatever it does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from typing import Any

from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Unavailable
from holdfast.store.database import ANY_DB_ERROR, Database, Session

log = logging.getLogger("holdfast.loops")

Step = Callable[[Any], Awaitable[None]]
Work = Callable[[Session, Any], Awaitable[Notifications]]


@contextmanager
def apart(what: str, row: Any) -> Iterator[None]:
    """Let what goes wrong for one row end nothing but the work for it."""
    try:
        yield
    except Unavailable:
        raise
    except ANY_DB_ERROR as error:
        log.warning("%s: %s failed, will try again: %s", what, dict(row), error)
    except Exception:
        # A row of a newer version, a damaged one, or a bug of ours: the rows behind it have done nothing to deserve it.
        log.exception("%s: %s failed, will try again", what, dict(row))


async def for_each_row(
    database: Database, statement: str, *arguments: Any, limit: int, what: str, work: Work
) -> Notifications:
    """Do some work for each row that a statement finds, at most `limit` of those for which it can be done.

    The statement takes, after `arguments`, how many rows to answer and how many to leave out. A page on which nothing
    could be done is not the last one: whatever is stuck must not hide what is not.
    """
    everything = NO_NOTIFICATIONS
    stuck = 0
    while True:
        rows = await database.fetch(statement, *arguments, limit, stuck)
        done: list[Notifications] = []
        for row in rows:
            with apart(what, row):
                async with database.transaction() as session:
                    notifications = await work(session, row)
                done.append(notifications)
        everything = reduce(Notifications.and_, done, everything)
        failed = len(rows) - len(done)
        stuck += failed
        if failed < limit:
            return everything


@dataclass(frozen=True, slots=True)
class Pages:
    """A statement that takes how many rows to answer, and behind which `number`."""

    statement: str
    _: KW_ONLY
    number: str
    limit: int


async def all_in_turn(database: Database, pages: Pages, step: Step, *, what: str, after: int = 0) -> None:
    """Take a step for every row of all pages, or of those behind `after`.

    Rows that are found again in every pass, because there is nothing to do about them yet, must not hide those behind
    them.
    """
    while True:
        rows = await database.fetch(pages.statement, pages.limit, after)
        for row in rows:
            with apart(what, row):
                await step(row)
        if len(rows) < pages.limit:
            return
        after = rows[-1][pages.number]
