"""Joining the caller's transaction: which connections can be joined, and what to do with any other.

Whoever gives `connection=` means "with my transaction, or not at all". A connection that cannot mean that is refused
before anything is stored: a pool would hand the statement to some connection of its own, and one without a transaction
would keep it whatever becomes of the caller's work.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import Invalid
from holdfast.store.database import Session

SQL_WAY = "`select holdfast.enqueue('app.action', '{\"name\": 1}')`"
"""How any driver and any language hands work in with its own transaction."""


def joined(connection: Any) -> Session:
    """The caller's open transaction as a session; `Invalid` for what is none."""
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


def refuse_for_blocking(given: Any) -> None:
    """A connection belongs to the event loop it was made on, and the blocking client has another."""
    if "connection" in given:
        raise Invalid(
            "The blocking client cannot join a transaction.",
            code="invalid_connection",
            advice=f"Say {SQL_WAY} in it, or use `app.client()` with a connection of asyncpg.",
        )


def _kind(connection: Any) -> str:
    kind = type(connection)
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"
