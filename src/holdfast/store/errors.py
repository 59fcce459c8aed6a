"""What an error of PostgreSQL or of the way to it means: who is away, what is refused, what may be tried again."""

from __future__ import annotations

import asyncpg

from holdfast.errors import HoldfastError, Unavailable

CONNECTION_LOST: tuple[type[Exception], ...] = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # What the driver says when the server's farewell arrived on an idle connection and has not been read yet.
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
"""What a server that restarts, vanishes or is full looks like on a connection."""

READ_ONLY = asyncpg.ReadOnlySQLTransactionError
"""A server that accepts no writes: a standby, or a primary that is being replaced. Nothing happened."""

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
"""For callers that repeat: what this module makes of a broken connection, and what the server asks to try again."""

BAD_CREDENTIALS: tuple[type[Exception], ...] = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
"""A user, a password or a database that is not there, as a connection says it; repeating cannot help."""

REFUSED: tuple[type[Exception], ...] = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""A value or a row the database does not accept; repeating cannot help."""

UNFIT = asyncpg.DataError
"""A value that its column or parameter cannot hold, such as a number that is too large."""

KEY_TAKEN = asyncpg.UniqueViolationError
"""A row is there already under a key that comes once."""

NAME_TAKEN = (asyncpg.DuplicateTableError, asyncpg.WrongObjectTypeError)
"""A table or view of this name is there already."""

STILL_USED = asyncpg.DependentObjectsStillExistError
"""Something else is built upon what was to go."""

LOCK_TIMEOUT = asyncpg.LockNotAvailableError
"""Others held a lock longer than this statement waits."""

LOCK_CONFLICT = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
"""Others hold locks: nothing happened, and it may be tried again."""

ANY_DB_ERROR: tuple[type[Exception], ...] = (*TRANSIENT, asyncpg.PostgresError)
"""Whatever a server may say instead of doing what it was asked, for loops that go on regardless."""


def is_refusal(error: BaseException | None) -> bool:
    """Whether the server itself said no to a transaction, which then changed nothing; and will again, asked at once."""
    return isinstance(error, asyncpg.PostgresError) and not isinstance(error, TRANSIENT)


def unreachable(url: str, error: BaseException) -> HoldfastError:
    """Say which server could not be reached, without its password."""
    return Unavailable(
        f"Cannot reach PostgreSQL at {without_password(url)}: {str(error) or type(error).__name__}.",
        code="database_unreachable",
        advice="Check HOLDFAST_URL and that the server runs (`holdfast doctor`).",
    )


def read_only(error: BaseException) -> HoldfastError:
    """A write that met a standby: during a failover the next connection finds the new primary."""
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
    """The URL as it may be shown to people."""
    scheme, _, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    name = user.partition(":")[0]
    where, _, parameters = place.partition("?")
    # A password may also stand among the parameters: those that say where the server is are kept, and no others.
    kept = "&".join(one for one in parameters.split("&") if one.partition("=")[0] in ("host", "port"))
    return f"{scheme}://{name}{at}{where}{f'?{kept}' if kept else ''}"
