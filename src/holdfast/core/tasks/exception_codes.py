"""Error codes of library exceptions: HTTP status, SQLSTATE, gRPC status, SMTP reply or errno.

Codes are read from the attributes that the libraries document (httpx, requests, aiohttp, urllib, botocore, asyncpg,
psycopg, SQLAlchemy, grpcio, smtplib). No library is imported, and other libraries with the same attributes work as
well. Reading never raises, even if a property of the foreign exception does.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

_SQLSTATE = re.compile(r"[0-9A-Z]{5}")
_NAME_ERRNO = {-3: "eai_again"}
"""`socket.gaierror` has its own error numbers, separate from errno; -3 is a temporary failure of name resolution."""
_WRAPPED = ("orig", "reason")
"""The attributes in which SQLAlchemy (`orig`) and urllib (`reason`) store the exception that they wrap."""
_WRAPS_MAX = 5
_DRIVERS = ("psycopg", "psycopg2")
_AWS_CODES = {
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottledException",
    "RequestThrottled",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "SlowDown",
    "PriorRequestNotComplete",
    "TransactionInProgressException",
}
"""Error codes by which AWS services ask the caller to slow down, several of them with HTTP status 400."""


def library_code(error: BaseException) -> str | None:
    """Return a code such as `http_503`, `sqlstate_40001`, `grpc_unavailable`, `smtp_421` or `errno_econnreset`."""
    for holder in _unwrapped(error):
        for read in (_http, _sqlstate, _grpc, _smtp, _errno):
            if (code := read(holder)) is not None:
                return code
    return None


def _unwrapped(error: BaseException) -> Iterator[Any]:
    holder: Any = error
    for _ in range(_WRAPS_MAX):
        yield holder
        inner = next((inner for name in _WRAPPED if isinstance(inner := read(holder, name), BaseException)), None)
        if inner is None or inner is holder:
            return
        holder = inner


def _http(error: Any) -> str | None:
    response = read(error, "response")
    if isinstance(response, Mapping):
        return _aws(response)
    candidates = (read(response, "status_code"), read(error, "status_code"), read(response, "status"))
    # aiohttp has `status`, urllib has `code`. Both names are too common to trust unless the error also has headers.
    own = ("status", "code") if read(error, "headers") is not None else ()
    found = chain(candidates, (read(error, name) for name in own))
    return next((f"http_{status}" for status in found if _is_status(status)), None)


def _aws(response: Mapping[Any, Any]) -> str | None:
    about, metadata = response.get("Error"), response.get("ResponseMetadata")
    if isinstance(about, Mapping) and about.get("Code") in _AWS_CODES:
        return "http_429"
    status = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    return f"http_{status}" if _is_status(status) else None


def _is_status(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599


def _sqlstate(error: Any) -> str | None:
    for name in ("sqlstate", "pgcode"):
        state = read(error, name)
        if isinstance(state, str) and _SQLSTATE.fullmatch(state):
            return f"sqlstate_{state.lower()}"
    # psycopg raises a bare OperationalError without a SQLSTATE when it cannot connect or the connection breaks.
    kind = type(error)
    is_driver = kind.__module__.partition(".")[0] in _DRIVERS
    return "connection_error" if is_driver and kind.__name__ == "OperationalError" else None


def _grpc(error: Any) -> str | None:
    code = read(error, "code")
    try:
        status = code() if callable(code) else None
    except Exception:  # noqa: BLE001 - a method of a foreign class
        return None
    name = read(status, "name")
    is_status = type(status).__name__ == "StatusCode" and isinstance(name, str) and name.isidentifier()
    return f"grpc_{name.lower()}" if is_status else None


def _smtp(error: Any) -> str | None:
    code = read(error, "smtp_code")
    return f"smtp_{code}" if isinstance(code, int) and 400 <= code <= 599 else None


def _errno(error: Any) -> str | None:
    if not isinstance(error, OSError) or not isinstance(error.errno, int):
        return None
    is_name_lookup = type(error).__name__ == "gaierror"
    name = _NAME_ERRNO.get(error.errno) if is_name_lookup else errno.errorcode.get(error.errno)
    return f"errno_{name.lower()}" if name else None


def read(holder: object, name: str) -> Any:
    """Read an attribute of a foreign object, whose properties may raise any exception."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - the property is user code; its failure must not hide the first one
        return None
