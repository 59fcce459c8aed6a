"""Classification of errors of PostgreSQL and of connections to it: lost, refused, or worth a retry."""

from __future__ import annotations

import asyncpg

from holdfast.errors import HoldfastError, Unavailable

CONNECTION_LOST: tuple[type[Exception], ...] = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The driver's error when the server closed an idle connection and the message has not been read yet.
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
"""Errors on a connection to a server that restarts, vanishes or is full."""

READ_ONLY = asyncpg.ReadOnlySQLTransactionError
"""The server accepts no writes: a standby, or a primary that is being replaced. Nothing was changed."""

TRANSIENT: tuple[type[Exception], ...] = (
    Unavailable,
    READ_ONLY,
    TimeoutError,
    *CONNECTION_LOST,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.InsufficientResourcesError,
)
"""Errors after which callers retry: `Unavailable` for a broken connection, and what the server asks to retry."""

BAD_CREDENTIALS: tuple[type[Exception], ...] = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
"""A user, password or database does not exist, as reported when connecting; retrying cannot help."""

REFUSED: tuple[type[Exception], ...] = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""A value or row that the database does not accept; retrying cannot help."""

UNFIT = asyncpg.DataError
"""A value that does not fit its column or parameter, such as a number that is too large."""

KEY_TAKEN = asyncpg.UniqueViolationError
"""A row with this unique key exists already."""

NAME_TAKEN = (asyncpg.DuplicateTableError, asyncpg.WrongObjectTypeError)
"""A table or view with this name exists already."""

STILL_USED = asyncpg.DependentObjectsStillExistError
"""Another object depends on the one to be dropped."""

LOCK_TIMEOUT = asyncpg.LockNotAvailableError
"""A lock was not available within the timeout."""

LOCK_CONFLICT = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
"""Other transactions have the locks: nothing was changed, and a retry may succeed."""

ANY_DB_ERROR: tuple[type[Exception], ...] = (*TRANSIENT, asyncpg.PostgresError)
"""Every error that a server may report, for loops that continue regardless."""


def is_refusal(error: BaseException | None) -> bool:
    """Return whether the server itself rejected a transaction, which then changed nothing and would be rejected
    again."""
    return isinstance(error, asyncpg.PostgresError) and not isinstance(error, TRANSIENT)


def unreachable(url: str, error: BaseException) -> HoldfastError:
    """Build the error for a server that could not be reached, without its password."""
    return Unavailable(
        f"Cannot reach PostgreSQL at {without_password(url)}: {str(error) or type(error).__name__}.",
        code="database_unreachable",
        advice="Check HOLDFAST_URL and that the server runs (`holdfast doctor`).",
    )


def read_only(error: BaseException) -> HoldfastError:
    """Build the error for a write on a standby: during a failover the next connection finds the new primary."""
    return Unavailable(
        f"PostgreSQL accepts no writes at the moment: {error}.",
        code="database_read_only",
        advice="Nothing was changed; try again. During a failover this lasts until a standby is promoted.",
    )


def outcome_unknown(error: BaseException) -> HoldfastError:
    return Unavailable(
        f"The connection to PostgreSQL broke: {str(error) or type(error).__name__}.",
        code="outcome_unknown",
        advice="The last write may or may not have happened; repeat it with an idempotency key.",
    )


def without_password(url: str) -> str:
    """Return the URL without secrets, for display."""
    scheme, _, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    name = user.partition(":")[0]
    where, _, parameters = place.partition("?")
    # A password may also be among the parameters: only those that locate the server are kept.
    kept = "&".join(one for one in parameters.split("&") if one.partition("=")[0] in ("host", "port"))
    return f"{scheme}://{name}{at}{where}{f'?{kept}' if kept else ''}"
