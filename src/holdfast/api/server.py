"""The server: all endpoints as one application, and the loop that offers it on an address.

Thin by rule: a handler decodes once, calls one verb and answers. No header that a proxy may set is believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette

from holdfast.api import health, ledger, stream, tasks, workers
from holdfast.api.edge import Endpoint, House, route
from holdfast.api.identity import require_safe_address
from holdfast.api.problems import HANDLERS
from holdfast.api.tail import Tail
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.remote import RemoteWorkers
from holdfast.errors import Unavailable
from holdfast.settings import Settings

ENDPOINTS: tuple[Endpoint, ...] = (
    *workers.ENDPOINTS,
    *ledger.ENDPOINTS,
    *health.ENDPOINTS,
    *tasks.ENDPOINTS,
    *stream.ENDPOINTS,
)
"""Those asked most come first: the router tries one after the other."""

CONNECTIONS_MAX = 4_096
FILES_BESIDE = 1_024
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 10


def application(house: House) -> Starlette:
    """Every endpoint behind its door."""
    return Starlette(routes=[route(endpoint, house) for endpoint in ENDPOINTS], exception_handlers=HANDLERS)


class _Server(uvicorn.Server):
    """Leaves signals to the process it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[str]:
    """Offer the API at the settings' address while the block runs; gives its URL."""
    settings = engine.settings
    require_safe_address(settings)
    bound = _bind(settings)
    _allow_connections()
    async with RemoteWorkers(engine) as remote:
        house = House(engine=engine, workers=remote, tail=Tail(engine), closing=asyncio.Event())
        server = _Server(
            uvicorn.Config(
                application(house),
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        running = asyncio.create_task(server.serve(sockets=[bound]), name="holdfast-http")
        try:
            yield _url(bound)
        finally:
            # Whoever waits gets an answer, so that nobody holds up the end.
            house.closing.set()
            house.tail.close()
            await remote.desk.close()
            server.should_exit = True
            await asyncio.gather(running, return_exceptions=True)
            bound.close()


def _allow_connections() -> None:
    """Every waiting worker and every reader of events is a connection, and so a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _bind(settings: Settings) -> socket.socket:
    """Bind before anything starts, so that a taken port is said at once."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        raise Unavailable(
            f"Cannot listen on {settings.host}:{settings.port}: {error.strerror or error}.",
            code="address_unavailable",
            advice="Choose another HOLDFAST_PORT, or stop what uses it.",
        ) from error
    return bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
