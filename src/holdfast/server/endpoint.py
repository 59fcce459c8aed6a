"""Endpoints: a route and the access it requires, with bodies decoded once and responses encoded once.

Every route is an `Endpoint`, which always declares its access. A body has a size limit and a time limit, and is decoded
straight into the type its handler takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.client.client import Client
from holdfast.engine.engine import Engine
from holdfast.engine.queries.metrics import Measure
from holdfast.errors import Forbidden, HoldfastError, Invalid, StoreUnreadable, Unauthorized
from holdfast.server.auth.authenticator import Authenticator
from holdfast.server.auth.caller import ANONYMOUS, Access, Caller, authorize
from holdfast.server.event_tail import EventTail
from holdfast.server.long_reads import LongReads
from holdfast.server.loop_lag import LoopLag
from holdfast.server.rate_limit import RateLimiter
from holdfast.server.readiness import Readiness
from holdfast.server.stream_limits import Streams
from holdfast.server.tenant_clients import TenantClients
from holdfast.server.worker_api.remote_workers import RemoteWorkers
from holdfast.server.worker_api.tenant_workers import TenantWorkers
from holdfast.store.database import TRANSIENT

T = TypeVar("T")

_NOT_COUNTED = (Access.PUBLIC, Access.WORKER, Access.ATTEMPT)
"""Access kinds without a rate limit: workers are few and authenticated, and probes must always get a response."""
_NOT_THE_DATABASE = {"too_many_attempts", "tenant_limit", "identity_provider_unavailable"}
"""Codes of unavailability that are not caused by the database."""

BODY_BYTES_MAX = 64 * 1024
BODY_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What handlers share. One per server."""

    engine: Engine
    client: Client
    """The client for installation-wide operations; `clients` has one per tenant."""
    clients: TenantClients
    authenticator: Authenticator
    pace: RateLimiter
    tenant_workers: TenantWorkers
    tail: EventTail
    streams: Streams
    readiness: Readiness
    closing: asyncio.Event
    measure: Measure = field(default_factory=Measure)
    lag: LoopLag = field(default_factory=LoopLag)
    long_reads: LongReads = field(default_factory=LongReads)

    async def close(self) -> None:
        """Close all clients."""
        await self.clients.close()
        await self.client.__aexit__(None, None, None)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One authenticated request: the caller, and the server's state."""

    request: Request
    caller: Caller
    server_state: ServerState

    @property
    def engine(self) -> Engine:
        """The engine of the caller's tenant.

        For public endpoints it is the whole engine, of which nothing may be shown.
        """
        return (
            self.server_state.engine if self.caller is ANONYMOUS else self.server_state.engine.of(self.caller.tenant_id)
        )

    def client(self) -> AbstractContextManager[Client]:
        """Return the client that executes operations for the caller's tenant, while the block runs."""
        return self.server_state.clients.of(self.caller.tenant_id)

    @property
    def workers(self) -> RemoteWorkers:
        """The worker contract for the caller's tenant."""
        return self.server_state.tenant_workers.of(self.caller.tenant_id)

    async def body(self, kind: type[T], *, bytes_max: int = BODY_BYTES_MAX) -> T:
        """Return the body as `kind`. Raise `Invalid` if it is too large, too slow, not JSON, or of another type."""
        return await read_body(self.request, kind, bytes_max=bytes_max)

    async def require_valid_credentials(self) -> None:
        """Raise `Unauthorized` or `Forbidden` if the caller's credentials are no longer valid. For long responses."""
        if await self.server_state.authenticator.caller(self.request) != self.caller:
            raise Unauthorized("The permissions of this token have changed.", advice="Repeat the request.")

    async def has_valid_credentials(self) -> bool:
        """Return whether the caller's credentials are still valid. For streams."""
        try:
            await self.require_valid_credentials()
        except (Unauthorized, Forbidden):
            return False
        return True


Handler = Callable[[ApiRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One route: its path, the access it requires, and its handler."""

    method: str
    path: str
    access: Access
    handler: Handler
    unauthorized_code: str = Unauthorized.default_code
    """The error code for unauthenticated requests; the contract of some routes fixes another one."""
    unreadable: str = ""
    """The message of a 502 response while the database is away, for routes that promise one."""
    takes: type | None = None
    answers: type | None = None
    """The types of body and response, for the routes of the worker contract; operations declare their own."""


def worker_call(path: str, handler: Handler, *, takes: type, answers: type, access: Access = Access.WORKER) -> Endpoint:
    """Return the endpoint of one call of the worker contract, with the types of its body and its response."""
    return Endpoint(method="POST", path=path, access=access, handler=handler, takes=takes, answers=answers)


def route(endpoint: Endpoint, server_state: ServerState) -> Route:
    """Return the route with its access check. No body is read before the caller is authenticated and authorized."""

    async def answer(request: Request) -> Response:
        try:
            answered = await admitted(request)
            server_state.engine.database.outage.answered("requests")
            return answered
        except TRANSIENT as error:
            if not endpoint.unreadable or (isinstance(error, HoldfastError) and error.code in _NOT_THE_DATABASE):
                raise
            raise StoreUnreadable(endpoint.unreadable, advice="Try again.") from error

    async def admitted(request: Request) -> Response:
        is_counted = endpoint.access not in _NOT_COUNTED
        if endpoint.access is Access.PUBLIC:
            return await endpoint.handler(ApiRequest(request, ANONYMOUS, server_state))
        try:
            caller = await server_state.authenticator.caller(request)
        except Unauthorized as error:
            if is_counted:
                # Only unauthenticated requests count for the address; otherwise one caller could use up the limit of
                # all behind it.
                server_state.pace.admit_peer(server_state.authenticator.peer(request))
            error.code = endpoint.unauthorized_code
            raise
        if is_counted:
            server_state.pace.admit_caller(caller.tenant_id, caller.actor)
        try:
            return await endpoint.handler(ApiRequest(request, authorize(caller, endpoint.access), server_state))
        except Forbidden as error:
            await server_state.authenticator.denied(
                caller, f"{endpoint.method} {endpoint.path}", endpoint.access, error
            )
            raise

    return Route(endpoint.path, answer, methods=[endpoint.method])


def reply(value: Any, status: int = 200) -> Response:
    """Return a JSON response; instants are in RFC 3339."""
    return Response(
        msgspec.json.encode(value, enc_hook=str),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


async def read_body(request: Request, kind: type[T], *, bytes_max: int) -> T:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Invalid("The body must be JSON.", code="body_not_json", advice="Send content-type: application/json.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    parts = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                parts += part
                if len(parts) > bytes_max:
                    raise _too_large(bytes_max)
    except TimeoutError:
        raise Invalid(f"The body took longer than {BODY_SECONDS_MAX:g} s.", code="body_too_slow") from None
    except ClientDisconnect:
        raise Invalid("The client disconnected before the body was complete.", code="body_incomplete") from None
    try:
        return msgspec.json.decode(bytes(parts), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The body cannot be used: {error}.", code="invalid_body") from error
    except RecursionError:
        raise Invalid("The body is nested too deeply.", code="payload_too_deep") from None


def _too_large(bytes_max: int) -> Invalid:
    return Invalid(f"The body is larger than {bytes_max} bytes.", code="body_too_large", limit=bytes_max)
