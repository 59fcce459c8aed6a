"""The server: all endpoints as one application, and the loop that offers it on an address.

Thin by rule: a handler decodes once, calls one verb and answers. No header that a proxy may set is believed, but
for whose address is counted where an operator says so. Workers may have a listener of their own; the other one then
knows nothing of `/internal/*`.
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

"""Those asked most come first: the router tries one after the other."""

INTERNAL = "/internal/"
CONNECTIONS_MAX = 4_096
FILES_BESIDE = 1_024
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 10
SHUTDOWN_LOOK_SECONDS = 0.005
TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the server listens: for operators and for workers, often the same."""

    url: str
    internal_url: str


def application(server_state: ServerState, endpoints: Sequence[Endpoint] = ENDPOINTS) -> Starlette:
    """Endpoints behind their doors. A path has one spelling, and what is not there is told to callers known only."""

    async def on_nothing(request: Request, error: Exception) -> Response:
        try:
            await server_state.door.caller(request)
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
    """Leaves signals to the process it is part of, and stops as soon as the last answer is out."""

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
        # On the tick it writes the date that answers bear.
        while not await self.on_tick(0):
            open_now = self.server_state.connections
            let_go(open_now, asyncio.get_running_loop().time(), is_crowded=len(open_now) > CONNECTIONS_MAX / 2)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stops.wait(), TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, and let every connection end after the answer it is at."""
        for listener in self.servers:
            listener.close()
        state = self.server_state
        told: set[object] = set()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                while state.connections or state.tasks:
                    # Also those that were accepted a moment ago.
                    for connection in [one for one in state.connections if one not in told]:
                        told.add(connection)
                        connection.shutdown()
                    await asyncio.sleep(SHUTDOWN_LOOK_SECONDS)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()


@contextlib.asynccontextmanager
async def serving(engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[str]:
    """Offer the API at the settings' address while the block runs; gives its URL."""
    async with listening(engine, clock=clock) as addresses:
        yield addresses.url


@contextlib.asynccontextmanager
async def listening(engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[Addresses]:
    """Offer the API at all addresses of the settings while the block runs. `clock` is the door's."""
    settings = engine.settings
    require_safe_address(settings)
    _allow_connections()
    server_state = ServerState(
        engine=engine,
        client=Client.over(engine),
        clients=TenantClients(engine),
        door=Authenticator(engine, clock=clock),
        pace=RateLimiter.of(settings.http),
        tenant_workers=TenantWorkers(engine),
        tail=EventTail(engine),
        streams=Streams.of(settings.http),
        readiness=Readiness(engine.database),
        closing=asyncio.Event(),
    )
    await server_state.door.require_some_identity()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server_state.door.close)
        stack.push_async_callback(server_state.close)
        await stack.enter_async_context(server_state.tenant_workers)
        stack.push_async_callback(_end, asyncio.create_task(server_state.lag.run(), name="holdfast-lag"))
        # Bound before anything starts, so that a taken port is said at once.
        public = stack.enter_context(_bound(settings.host, settings.port, "HOLDFAST_PORT"))
        if settings.internal_address is None:
            await stack.enter_async_context(_offered(server_state, ENDPOINTS, public))
            yield Addresses(url=_url(public), internal_url=_url(public))
            return
        internal = stack.enter_context(_bound(*settings.internal_address, "HOLDFAST_INTERNAL_PORT"))
        for workers_here, bound in ((False, public), (True, internal)):
            offered = [one for one in ENDPOINTS if _is_for_all(one) or one.path.startswith(INTERNAL) == workers_here]
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
    """Answer on one socket while the block runs."""
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
        # Whoever waits gets an answer, so that nobody holds up the end.
        server_state.closing.set()
        server_state.tail.close()
        await server_state.tenant_workers.wait_registry.close()
        server.stop()
        await asyncio.gather(running, return_exceptions=True)


def _allow_connections() -> None:
    """Every waiting worker and every reader of events is a connection, and so a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def _bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    """A socket that listens."""
    try:
        # The protocol is named because asyncio sends small answers at once only where it is: otherwise the body of an
        # answer waits for its head to be acknowledged, 40 ms on a connection that is used again.
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
            advice=f"Choose another {setting}, or stop what uses it.",
        ) from error
    with contextlib.closing(bound):
        yield bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
