"""The edge: a route and what it demands, bodies decoded once, answers encoded once.

A route is an `Endpoint`, which has its access; there is no way to add one without. A body has a limit and must arrive
in time; it is decoded straight into the type its handler takes.
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
from holdfast.server.auth.caller import NOBODY, Access, Caller, authorize
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
"""Workers are few and known; and whoever watches over the server hears from it whatever else its neighbours ask."""
_NOT_THE_DATABASE = {"too_many_attempts", "tenant_limit", "identity_provider_unavailable"}
"""What is away for now, and is not the database."""

BODY_BYTES_MAX = 64 * 1024
BODY_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What handlers work with. One per server."""

    engine: Engine
    client: Client
    """For what is about the whole installation; `clients` are for one tenant each."""
    clients: TenantClients
    door: Authenticator
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
        """Let go of what clients hold."""
        await self.clients.close()
        await self.client.__aexit__(None, None, None)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request, after the door: who asks, and of what."""

    request: Request
    caller: Caller
    server_state: ServerState

    @property
    def engine(self) -> Engine:
        """The engine of the caller's tenant; the whole one where nobody had to say who they are: show nothing of it."""
        return self.server_state.engine if self.caller is NOBODY else self.server_state.engine.of(self.caller.tenant_id)

    def client(self) -> AbstractContextManager[Client]:
        """What carries out operations for the caller's tenant, while the block runs."""
        return self.server_state.clients.of(self.caller.tenant_id)

    @property
    def workers(self) -> RemoteWorkers:
        """The worker contract for the caller's tenant."""
        return self.server_state.tenant_workers.of(self.caller.tenant_id)

    async def body(self, kind: type[T], *, bytes_max: int = BODY_BYTES_MAX) -> T:
        """The body as this type; `Invalid` if it is too large, too slow, no JSON, or something else."""
        return await read_body(self.request, kind, bytes_max=bytes_max)

    async def require_welcome(self) -> None:
        """For answers that take their time: `Unauthorized` or `Forbidden` if the caller would not be let in again."""
        if await self.server_state.door.caller(self.request) != self.caller:
            raise Unauthorized("This token is for something else by now.", advice="Ask again.")

    async def is_still_welcome(self) -> bool:
        """For answers that last: whether the caller would be let in again now."""
        try:
            await self.require_welcome()
        except (Unauthorized, Forbidden):
            return False
        return True


Handler = Callable[[ApiRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One route: where it is, what it demands, and who answers."""

    method: str
    path: str
    access: Access
    handler: Handler
    unauthorized_code: str = Unauthorized.default_code
    """What a route answers to nobody known; the contract of some fixes another code."""
    unreadable: str = ""
    """What a route says, with 502, while the database is away, for those that answer so from the door on."""
    takes: type | None = None
    answers: type | None = None
    """The types of body and answer, for the routes of the worker contract; operations have theirs."""


def worker_call(path: str, handler: Handler, *, takes: type, answers: type, access: Access = Access.WORKER) -> Endpoint:
    """One call of the worker contract, with the types of its body and its answer."""
    return Endpoint(method="POST", path=path, access=access, handler=handler, takes=takes, answers=answers)


def route(endpoint: Endpoint, server_state: ServerState) -> Route:
    """The endpoint behind its door. Nothing of a body is read before the caller is known and may."""

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
            return await endpoint.handler(ApiRequest(request, NOBODY, server_state))
        try:
            caller = await server_state.door.caller(request)
        except Unauthorized as error:
            if is_counted:
                # Counted for nobody known only: else one of them could use up what all behind an address may send.
                server_state.pace.admit_peer(server_state.door.peer(request))
            error.code = endpoint.unauthorized_code
            raise
        if is_counted:
            server_state.pace.admit_caller(caller.tenant_id, caller.actor)
        try:
            return await endpoint.handler(ApiRequest(request, authorize(caller, endpoint.access), server_state))
        except Forbidden as error:
            await server_state.door.denied(caller, f"{endpoint.method} {endpoint.path}", endpoint.access, error)
            raise

    return Route(endpoint.path, answer, methods=[endpoint.method])


def reply(value: Any, status: int = 200) -> Response:
    """An answer in JSON; instants in RFC 3339."""
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
        raise Invalid("The caller left before its body was complete.", code="body_incomplete") from None
    try:
        return msgspec.json.decode(bytes(parts), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The body cannot be used: {error}.", code="invalid_body") from error
    except RecursionError:
        raise Invalid("The body is nested too deep.", code="payload_too_deep") from None


def _too_large(bytes_max: int) -> Invalid:
    return Invalid(f"The body is larger than {bytes_max} bytes.", code="body_too_large", limit=bytes_max)
