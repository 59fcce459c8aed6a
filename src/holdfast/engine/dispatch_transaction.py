"""A transaction that enqueues work on behalf of a waiting caller.

If the transaction fails, the caller gets `DispatchFailed` with the code of the dispatch, which states that nothing
changed. The error is raised only where that is certain: a commit whose response was lost stays an unknown outcome.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.core.tasks.outcome import Completed, Failed, Lost, TimedOut
from holdfast.core.tasks.retry import RetryAt, RetryPolicy, decide
from holdfast.engine.leases import Report
from holdfast.errors import DispatchFailed, HoldfastError, Unavailable
from holdfast.store.database import ANY_DB_ERROR, TRANSIENT, UNFIT, Database, Session

log = logging.getLogger("holdfast.dispatch")

RETRY = "DAG_DISPATCH_ENQUEUE_RETRY_FAILED"
DOWNSTREAM = "DAG_DISPATCH_ENQUEUE_DOWNSTREAM_FAILED"
DEAD_LETTER = "DAG_DISPATCH_DEAD_LETTER_ENQUEUE_FAILED"
REINJECT = "DAG_DISPATCH_REINJECT_ENQUEUE_FAILED"

_NEVER_BEGUN = ("database_unreachable", "pool_exhausted")
_CUT_SHORT = "outcome_unknown"


@asynccontextmanager
async def dispatch_transaction(database: Database, code: str, what: str) -> AsyncIterator[Session]:
    """Open a transaction like `database.transaction()`; raise `DispatchFailed` with this code if it certainly
    failed."""
    is_committing = False
    try:
        async with database.transaction() as session:
            yield session
            is_committing = True
    except UNFIT:
        # A value of the request is invalid; the code that decoded the request can name it.
        raise
    except ANY_DB_ERROR as error:
        if not _changed_nothing(error, is_committing=is_committing):
            raise
        if not isinstance(error, TRANSIENT):
            log.exception("%s: %s failed", code, what)
        raise not_dispatched(code, what, error) from error


def _changed_nothing(error: Exception, *, is_committing: bool) -> bool:
    """Return whether the transaction certainly changed nothing.

    An error that the server sends instead of a commit is a definite answer; a connection lost during the commit is not.
    """
    if not isinstance(error, Unavailable):
        return True
    return error.code in _NEVER_BEGUN or (error.code == _CUT_SHORT and not is_committing)


def not_dispatched(code: str, what: str, error: Exception) -> DispatchFailed:
    """Build the error which says that nothing changed, and why. It does not reveal where the database is."""
    why = "the database cannot be reached" if _is_unreachable(error) else str(getattr(error, "detail", None) or error)
    return DispatchFailed(f"{what} failed and nothing changed: {why.rstrip('.')}.", code=code, advice="Ask again.")


def dispatched_by(report: Report, policy: RetryPolicy) -> str | None:
    """Return the code of the dispatch that settling a report would have made, or None if no dispatch follows from
    it."""
    match report.outcome:
        case Failed() | TimedOut() | Lost() as outcome:
            decision = decide(policy, outcome, retries=report.retries, losses=report.losses, jitter=0.0)
            return RETRY if isinstance(decision, RetryAt) else DEAD_LETTER
        case Completed() if report.followers:
            return DOWNSTREAM
        case _:
            return None


def _is_unreachable(error: Exception) -> bool:
    return isinstance(error, HoldfastError) and error.code == "database_unreachable"
