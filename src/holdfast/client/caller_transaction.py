"""Joining of the caller's transaction: which connections can be joined, and the refusal of others.

A caller that passes `connection=` wants the work stored with its own transaction or not at all. A connection that
cannot guarantee this is refused before anything is stored. A pool would run the statement on another connection, and a
connection without a transaction would keep the work whatever happens to the caller's changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import Invalid
from holdfast.store.database import Session

SQL_WAY = "`select holdfast.enqueue('app.action', '{\"name\": 1}')`"
"""The SQL with which any driver in any language enqueues work in its own transaction."""


def joined(connection: Any) -> Session:
    """Return the caller's open transaction as a session; raise `Invalid` if there is none."""
    session = connection if isinstance(connection, Session) else Session(connection)
    if not hasattr(session.connection, "is_in_transaction") or not hasattr(session.connection, "fetch"):
        raise Invalid(
            f"connection= takes a connection of asyncpg, not a {_kind(session.connection)}.",
            code="invalid_connection",
            advice="Of a pool, give the connection that you acquired; of SQLAlchemy, the `driver_connection` of its "
            f"raw connection (postgresql+asyncpg). With any other driver, say {SQL_WAY} in your transaction.",
        )
    if not session.is_in_transaction():
        raise Invalid(
            "The connection has no transaction open that could be joined.",
            code="invalid_connection",
            advice="Write `async with connection.transaction():` around it, or leave connection= out.",
        )
    return session


def refuse_for_blocking(arguments: Mapping[str, Any]) -> None:
    """Refuse `connection=`: a connection belongs to one event loop, and the blocking client has its own."""
    if "connection" in arguments:
        raise Invalid(
            "The blocking client cannot join a transaction.",
            code="invalid_connection",
            advice=f"Say {SQL_WAY} in it, or use `app.client()` with a connection of asyncpg.",
        )


def _kind(connection: Any) -> str:
    kind = type(connection)
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"
