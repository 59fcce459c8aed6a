"""One by one: a pass over rows that have nothing to do with each other, each in a transaction of its own.

What the server refuses for one row is logged and left for the next pass; the others have their turn all the same. When
there is no server the pass ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.dispatcher.news import NO_NEWS, News
from holdfast.errors import Unavailable
from holdfast.store.database import TROUBLE, Database, Session

log = logging.getLogger("holdfast.loops")

Work = Callable[[Session, Any], Awaitable[News]]


async def one_by_one(database: Database, statement: str, *arguments: Any, limit: int, what: str, work: Work) -> News:
    """Do some work for each row that a statement finds, at most `limit` of those for which it can be done.

    The statement takes, after `arguments`, how many rows to answer and how many to leave out. A page on which nothing
    could be done is not the last one: whatever is stuck must not hide what is not.
    """
    everything = NO_NEWS
    stuck = 0
    while True:
        rows = await database.fetch(statement, *arguments, limit, stuck)
        failed = 0
        for row in rows:
            try:
                async with database.transaction() as session:
                    done = await work(session, row)
            except Unavailable:
                raise
            except TROUBLE as error:
                failed += 1
                log.warning("%s: %s failed, will try again: %s", what, dict(row), error)
            else:
                everything = everything.and_(done)
        stuck += failed
        if failed < limit:
            return everything
