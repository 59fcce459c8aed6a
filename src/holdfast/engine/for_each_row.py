"""Process independent rows, each in a transaction of its own.

An error that concerns one row is logged and the row is left for the next pass; the other rows are processed. The pass
ends when the server is unreachable. Use `for_each_row` for rows that processing removes from the statement's result,
and `all_in_turn` for rows that stay in it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TypeVar

from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Unavailable
from holdfast.store.database import ANY_DB_ERROR, Database, Session

log = logging.getLogger("holdfast.loops")

Row = TypeVar("Row")
ReadPage = Callable[[int, int], Awaitable[Sequence[Row]]]
"""Reads a page: the first argument is the limit, the second says where the page begins."""


@contextmanager
def apart(what: str, row: object) -> Iterator[None]:
    """Log an error raised for one row instead of ending the pass. `Unavailable` is raised."""
    try:
        yield
    except Unavailable:
        raise
    except ANY_DB_ERROR as error:
        log.warning("%s: %s failed, will try again: %s", what, row, error)
    except Exception:
        # The row may be damaged or of a newer version, or this is a bug; the rows after it must still be processed.
        log.exception("%s: %s failed, will try again", what, row)


async def for_each_row(
    database: Database,
    read: ReadPage[Row],
    *,
    limit: int,
    what: str,
    work: Callable[[Session, Row], Awaitable[Notifications]],
) -> Notifications:
    """Call `work` for each row, at most `limit` rows at a time. `read` takes a limit and an offset.

    If every row of a full page fails, the next page is read, so that rows that always fail do not hide the rows after
    them.
    """
    everything = NO_NOTIFICATIONS
    stuck = 0
    while True:
        rows = await read(limit, stuck)
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


async def all_in_turn(
    read: ReadPage[Row],
    step: Callable[[Row], Awaitable[None]],
    *,
    number: Callable[[Row], int],
    limit: int,
    what: str,
    after: int = 0,
) -> None:
    """Call `step` for every row of all pages, or of the pages after `after`. `read` takes a limit and the number after
    which its page begins.

    Every pass reads all pages: rows that are returned each time because nothing can be done about them yet must not
    hide the rows after them.
    """
    while True:
        rows = await read(limit, after)
        for row in rows:
            with apart(what, row):
                await step(row)
        if len(rows) < limit:
            return
        after = number(rows[-1])
