"""Errors as RFC 9457 problem responses, with one table from error class to status.

A problem carries the code, the category, what happened, what to do, and the error's own fields, such as the winner.
Unexpected errors are logged and answered without details.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from holdfast.errors import (
    Conflict,
    EffectDenied,
    EffectRefused,
    Forbidden,
    HoldfastError,
    Invalid,
    NotFound,
    TaskFailed,
    TooMany,
    Unauthorized,
    Unavailable,
)
from holdfast.store.database import CONNECTION_LOST, TRANSIENT
from holdfast.store.outage import Outage

log = logging.getLogger("holdfast.server")

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:holdfast:problem:"

STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (TaskFailed, 409),
    (EffectDenied, 403),
    (EffectRefused, 409),
    (Invalid, 400),
    (TooMany, 429),
    (Unavailable, 503),
    (HoldfastError, 500),
)
"""The first match decides."""

CODE_STATUSES = {
    "store_unreadable": 502,
    "body_too_large": 413,
    "payload_too_large": 413,
    "body_not_json": 415,
    "body_too_slow": 408,
    "head_too_large": 431,
    "too_many_attempts": 429,
    "url_not_allowed": 422,
    "reporter_not_allowed": 422,
    "tenant_limit": 429,
    "method_not_allowed": 405,
}
"""Codes whose status is not that of their error class."""

_OUTAGE = (Unavailable, TimeoutError, *CONNECTION_LOST)
"""Errors that mean that the database is away, not that a retry is needed."""

_RESERVED = {"type", "title", "status", "detail", "code", "category", "advice"}


def status_of(error: HoldfastError) -> int:
    """Return the HTTP status of an error."""
    return CODE_STATUSES.get(error.code) or next(status for kind, status in STATUSES if isinstance(error, kind))


def problem(error: HoldfastError) -> Response:
    """Return an error as a response."""
    status = status_of(error)
    body: dict[str, Any] = {
        "type": f"{TYPE_PREFIX}{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.detail,
        "code": error.code,
        "category": error.category,
        "advice": error.advice,
        **{name: value for name, value in error.fields.items() if name not in _RESERVED},
    }
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (429, 503):
        headers["retry-after"] = str(error.fields.get("retry_after_seconds", 1))
    return Response(msgspec.json.encode(body, enc_hook=str), status_code=status, media_type=MEDIA_TYPE, headers=headers)


async def on_error(_request: Request, error: Exception) -> Response:
    """Handle an error that a handler raised on purpose."""
    assert isinstance(error, HoldfastError)
    if error.code == "database_unreachable":
        # The database's address belongs in the log and on the command line, not in responses.
        return await on_away(_request, error)
    return problem(error)


async def on_away(_request: Request, error: Exception) -> Response:
    """Handle a database that is away, full, or requires a retry."""
    outage: Outage = _request.app.state.server_state.engine.database.outage
    if isinstance(error, _OUTAGE):
        outage.failed("requests", error)
    else:
        log.warning("a request failed because the database asks to try again: %s", error)
    return problem(Unavailable("The database is not available.", code="database_unavailable", advice="Try again."))


async def on_http(request: Request, error: Exception) -> Response:
    """Handle the router's own errors: unknown path, unknown method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = ", ".join(sorted(methods_of(request)))
        refusal = Invalid(
            f"This path does not support {request.method}.", code="method_not_allowed", advice=f"It supports {allowed}."
        )
        response = problem(refusal)
        response.headers["allow"] = allowed
        return response
    return problem(NotFound("There is no resource at this path.", code="path_not_found"))


def methods_of(request: Request) -> set[str]:
    """Return every method that some route has for the path of a request."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found


async def on_surprise(request: Request, error: Exception) -> Response:
    """Handle an unexpected error, which is a bug."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(
        HoldfastError("The server failed to handle the request.", code="internal_error", advice="See the server's log.")
    )


HANDLERS: dict[Any, Any] = {
    HoldfastError: on_error,
    HTTPException: on_http,
    **dict.fromkeys((kind for kind in TRANSIENT if not issubclass(kind, HoldfastError)), on_away),
    Exception: on_surprise,
}
