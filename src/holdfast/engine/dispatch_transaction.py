"""Dispatching: a transaction that puts work into a queue because somebody asked, and waits for it.

If it fails, who asked is told that nothing changed, with the code of what was to be dispatched. That is said only where
it is known: a commit whose answer was lost stays an unknown outcome.
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
    """A transaction, as `database.transaction()`; `DispatchFailed` with this code if it is known to have failed."""
    is_committing = False
    try:
        async with database.transaction() as session:
            yield session
            is_committing = True
    except UNFIT:
        # A value of the request, which whoever decoded it can name.
        raise
    except ANY_DB_ERROR as error:
        if not _changed_nothing(error, is_committing=is_committing):
            raise
        if not isinstance(error, TRANSIENT):
            log.exception("%s: %s failed", code, what)
        raise not_dispatched(code, what, error) from error


def _changed_nothing(error: Exception, *, is_committing: bool) -> bool:
    """What the server says instead of committing is an answer; what happens to the connection then is none."""
    if not isinstance(error, Unavailable):
        return True
    return error.code in _NEVER_BEGUN or (error.code == _CUT_SHORT and not is_committing)


def not_dispatched(code: str, what: str, error: Exception) -> DispatchFailed:
    """Say that nothing changed, and why. Where the database is, is for those who have its URL."""
    why = "the database cannot be reached" if _is_unreachable(error) else str(getattr(error, "detail", None) or error)
    return DispatchFailed(f"{what} failed and nothing changed: {why.rstrip('.')}.", code=code, advice="Ask again.")


def dispatched_by(report: Report, policy: RetryPolicy) -> str | None:
    """The code of what settling a report would have dispatched; None where nothing follows from it."""
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
