"""The server: all endpoints as one application, and the loop that serves it on an address.

Handlers are thin by rule: each decodes once, calls one operation and responds. No header that a proxy may set is
trusted, except for the client address used in rate limits, where an operator enables it. Workers may have their own
listener; the public one then has no `/internal/*` routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client.client import Client
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, Unavailable
from holdfast.server import event_stream, execution_routes, health, metrics, openapi_routes, operation_routes
from holdfast.server.auth.authenticator import Authenticator
from holdfast.server.auth.client_address import require_safe_address
from holdfast.server.connection import Connection, let_go
from holdfast.server.endpoint import Endpoint, ServerState, route
from holdfast.server.event_tail import EventTail
from holdfast.server.problems import HANDLERS, on_http, problem
from holdfast.server.rate_limit import RateLimiter
from holdfast.server.readiness import Readiness
from holdfast.server.security_headers import SafeHeaders
from holdfast.server.stream_limits import Streams
from holdfast.server.tenant_clients import TenantClients
from holdfast.server.worker_api import effects, launched, registration, routes
from holdfast.server.worker_api.tenant_workers import TenantWorkers

ENDPOINTS: tuple[Endpoint, ...] = (
    *routes.ENDPOINTS,
    *effects.ENDPOINTS,
    *health.ENDPOINTS,
    *execution_routes.ENDPOINTS,
    *event_stream.ENDPOINTS,
    *metrics.ENDPOINTS,
    *registration.ENDPOINTS,
    *launched.ENDPOINTS,
    *openapi_routes.ENDPOINTS,
    *operation_routes.ENDPOINTS,
)

"""Ordered by frequency of requests, because the router tries one after the other."""

INTERNAL = "/internal/"
CONNECTIONS_MAX = 4_096
FILES_BESIDE = 1_024
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 10
SHUTDOWN_LOOK_SECONDS = 0.005
TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the server listens: for operators and for workers, often the same address."""

    url: str
    internal_url: str


def application(server_state: ServerState, endpoints: Sequence[Endpoint] = ENDPOINTS) -> Starlette:
    """Return the application with authentication for every endpoint.

    Each path has one spelling: there are no redirects. Only authenticated callers learn that a path does not exist.
    """

    async def on_nothing(request: Request, error: Exception) -> Response:
        try:
            await server_state.authenticator.caller(request)
        except HoldfastError as refusal:
            return problem(refusal)
        return await on_http(request, error)

    made = Starlette(
        routes=[route(endpoint, server_state) for endpoint in endpoints],
        exception_handlers={**HANDLERS, HTTPException: on_nothing},
    )
    made.state.server_state = server_state
    made.router.redirect_slashes = False
    return made


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its process, and stops as soon as the last response is sent."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stops = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True
        self._stops.set()

    async def main_loop(self) -> None:
        # on_tick also refreshes the Date header of responses.
        while not await self.on_tick(0):
            open_now = self.server_state.connections
            let_go(open_now, asyncio.get_running_loop().time(), is_crowded=len(open_now) > CONNECTIONS_MAX / 2)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stops.wait(), TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and close every connection after its current response."""
        for listener in self.servers:
            listener.close()
        state = self.server_state
        notified: set[object] = set()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                while state.connections or state.tasks:
                    # Include connections that were accepted a moment ago.
                    for connection in [
                        open_connection for open_connection in state.connections if open_connection not in notified
                    ]:
                        notified.add(connection)
                        connection.shutdown()
                    await asyncio.sleep(SHUTDOWN_LOOK_SECONDS)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()


@contextlib.asynccontextmanager
async def serving(engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[str]:
    """Serve the API at the settings' address while the block runs; yield its URL."""
    async with listening(engine, clock=clock) as addresses:
        yield addresses.url


@contextlib.asynccontextmanager
async def listening(engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[Addresses]:
    """Serve the API at all addresses of the settings while the block runs. `clock` is the authenticator's."""
    settings = engine.settings
    require_safe_address(settings)
    _allow_connections()
    server_state = ServerState(
        engine=engine,
        client=Client.over(engine),
        clients=TenantClients(engine),
        authenticator=Authenticator(engine, clock=clock),
        pace=RateLimiter.of(settings.http),
        tenant_workers=TenantWorkers(engine),
        tail=EventTail(engine),
        streams=Streams.of(settings.http),
        readiness=Readiness(engine.database),
        closing=asyncio.Event(),
    )
    await server_state.authenticator.require_some_identity()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server_state.authenticator.close)
        stack.push_async_callback(server_state.close)
        await stack.enter_async_context(server_state.tenant_workers)
        stack.push_async_callback(_end, asyncio.create_task(server_state.lag.run(), name="holdfast-lag"))
        # Bind before anything starts, so that a port in use is reported at once.
        public = stack.enter_context(_bound(settings.host, settings.port, "HOLDFAST_PORT"))
        if settings.internal_address is None:
            await stack.enter_async_context(_offered(server_state, ENDPOINTS, public))
            yield Addresses(url=_url(public), internal_url=_url(public))
            return
        internal = stack.enter_context(_bound(*settings.internal_address, "HOLDFAST_INTERNAL_PORT"))
        for workers_here, bound in ((False, public), (True, internal)):
            offered = [
                endpoint
                for endpoint in ENDPOINTS
                if _is_for_all(endpoint) or endpoint.path.startswith(INTERNAL) == workers_here
            ]
            await stack.enter_async_context(_offered(server_state, offered, bound))
        yield Addresses(url=_url(public), internal_url=_url(internal))


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _is_for_all(endpoint: Endpoint) -> bool:
    return endpoint in health.ENDPOINTS


@contextlib.asynccontextmanager
async def _offered(
    server_state: ServerState, endpoints: Sequence[Endpoint], bound: socket.socket
) -> AsyncIterator[None]:
    """Serve on one socket while the block runs."""
    server = _Server(
        uvicorn.Config(
            SafeHeaders(application(server_state, endpoints)),
            http=Connection,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[bound]), name="holdfast-http")
    try:
        yield
    finally:
        # End every long poll and stream first, so that none delays the shutdown.
        server_state.closing.set()
        server_state.tail.close()
        await server_state.tenant_workers.wait_registry.close()
        server.stop()
        await asyncio.gather(running, return_exceptions=True)


def _allow_connections() -> None:
    """Raise the limit of open files: every waiting worker and every event stream is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def _bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    """Yield a listening socket."""
    try:
        # Name the protocol, because only then asyncio disables Nagle's algorithm. Otherwise a response's body waits for
        # the acknowledgement of its head, 40 ms on a reused connection.
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        raise Unavailable(
            f"Cannot listen on {host}:{port}: {error.strerror or error}.",
            code="address_unavailable",
            advice=f"Choose another {setting}, or stop the process that uses it.",
        ) from error
    with contextlib.closing(bound):
        yield bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
