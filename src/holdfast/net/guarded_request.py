"""HTTP requests to URLs that users chose: checked when they are saved, and again on every connection.

The name is resolved here, every one of its addresses must be allowed, and the connection goes to one of exactly these
addresses, so a later change of the name has no effect. TLS and the Host header still use the name. Redirects are not
followed. Only the status and Retry-After of the response are used; its body is never shown, decoded or waited for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from holdfast._internal.blocking_pool import BlockingCallPool
from holdfast.errors import Invalid, Unavailable
from holdfast.net.address import PORTS, Address, EgressRules, RequestTarget, refusal, target_of

if TYPE_CHECKING:
    import httpcore

RESOLVE_SECONDS_MAX = 5.0
RESOLVES_MAX = 16
DRAIN_BYTES_MAX = 64 * 1024
DRAIN_SECONDS_MAX = 1.0
CONNECTIONS_MAX = 50
IDLE_SECONDS = 15.0


def is_possible() -> bool:
    """Return whether the packages for requests are installed."""
    return find_spec("httpcore") is not None


class Resolver(Protocol):
    """Returns the addresses of a name."""

    async def __call__(self, host: str, port: int) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of a response that are used."""

    status: int
    retry_after: str | None
    seconds: float

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def sentence(self) -> str:
        redirect = ", and redirects are not followed" if 300 <= self.status < 400 else ""
        return f"it answered {self.status}{redirect}"


class NotReached(Exception):
    """No response came. The text gives the reason without any text from the other side."""


_resolving = BlockingCallPool("resolve", threads_max=RESOLVES_MAX)


async def resolve(host: str, port: int) -> list[str]:
    """Call the system resolver in a separate thread pool, so that names chosen by users cannot block the
    engine's own.
    """
    found = await _resolving.run(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def check_url(url: object, rules: EgressRules, *, resolver: Resolver = resolve) -> RequestTarget:
    """Check a URL before it is saved: its parts, and every address that its host has now."""
    target = target_of(url, rules)
    if target.address is None and rules.proxy is None:
        try:
            await addresses_of(target.host, target.port, rules, resolver)
        except NotReached as error:
            raise refusal(str(error), "Check the name.") from None
    return target


async def addresses_of(host: str, port: int, rules: EgressRules, resolver: Resolver = resolve) -> list[str]:
    """Return the addresses of a host; raise if one of them may not be requested."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS_MAX):
            found = await resolver(host, port)
    except (OSError, TimeoutError, UnicodeError):
        found = []
    if not found:
        raise NotReached(f"{host} does not resolve")
    for text in found:
        why = "" if host in rules.names else rules.refuse(_address(text))
        if why:
            raise refusal(f"{host} resolves to a private address: {why}", "See HOLDFAST_EGRESS_ALLOW.")
    return list(found)


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])


class Guarded:
    """Sends requests under rules, with reused connections. Close it in the event loop in which it was used."""

    def __init__(self, rules: EgressRules, *, resolver: Resolver = resolve) -> None:
        self.rules = rules
        self.resolver = resolver
        self._pool: Any = None

    async def ask(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"", seconds_max: float
    ) -> Answer:
        """Send one request; raise `NotReached` without a response in time, `Invalid` for a URL that may not be
        requested.
        """
        target = target_of(url, self.rules)
        self._pool = self._pool or _pool(self.rules, self.resolver)
        import httpcore

        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds_max):
                return await self._ask(method, target, headers or {}, body, began)
        except TimeoutError:
            raise NotReached(f"no response within {seconds_max:g} s") from None
        except httpcore.TimeoutException:
            raise NotReached("it was too slow") from None
        except (httpcore.ConnectError, httpcore.ProxyError, ssl.SSLError, OSError) as error:
            raise NotReached(f"no connection: {_reason(error)}") from None
        except (httpcore.ProtocolError, httpcore.NetworkError) as error:
            raise NotReached(f"it violated the HTTP protocol ({type(error).__name__})") from None

    async def _ask(
        self, method: str, target: RequestTarget, headers: Mapping[str, str], body: bytes, began: float
    ) -> Answer:
        import httpcore

        host = f"[{target.host}]" if ":" in target.host else target.host
        port = None if target.port == PORTS[target.scheme] else target.port
        url = httpcore.URL(scheme=target.scheme, host=host, port=port, target=target.path)
        sent = {"accept-encoding": "identity", "user-agent": "holdfast", **headers}
        async with self._pool.stream(method, url, headers=list(sent.items()), content=body) as answer:
            retry_after = next((value for name, value in answer.headers if name.lower() == b"retry-after"), None)
            seconds = time.monotonic() - began
            await _drain(answer)
        retry_after_text = None if retry_after is None else retry_after[:64].decode("ascii", "replace")
        return Answer(status=answer.status, retry_after=retry_after_text, seconds=seconds)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None


async def _drain(answer: Any) -> None:
    """Read a short body, so that the connection can be reused; a long or slow one ends with its connection."""
    seen = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            async for part in answer.aiter_stream():
                seen += len(part)
                if seen > DRAIN_BYTES_MAX:
                    return
    except TimeoutError:
        return


def _reason(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]


def _pool(rules: EgressRules, resolver: Resolver) -> Any:
    try:
        import httpcore
    except ModuleNotFoundError as error:
        raise Unavailable(
            "Requests to other machines need httpcore, which is not installed.",
            code="extra_missing",
            advice="pip install 'holdfast[server]'",
        ) from error
    options: dict[str, Any] = {
        "ssl_context": _trust(),
        "max_connections": CONNECTIONS_MAX,
        "keepalive_expiry": IDLE_SECONDS,
    }
    if rules.proxy is not None:
        return httpcore.AsyncHTTPProxy(rules.proxy, **options)
    return httpcore.AsyncConnectionPool(network_backend=_pinned(rules, resolver), **options)


@cache
def _trust() -> ssl.SSLContext:
    """Return a context with the system's authorities and certifi's, because small images have none of their own."""
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _pinned(rules: EgressRules, resolver: Resolver) -> httpcore.AsyncNetworkBackend:
    """Return a network backend that resolves once, checks the addresses, and connects to exactly these."""
    import httpcore

    class Pinned(httpcore.AsyncNetworkBackend):
        def __init__(self) -> None:
            self._network = httpcore.AnyIOBackend()

        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Any = None,
        ) -> httpcore.AsyncNetworkStream:
            trouble: Exception = httpcore.ConnectError("no address")
            for address in await self._addresses(host.strip("[]"), port):
                try:
                    return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
                except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                    trouble = error
            raise trouble

        async def _addresses(self, host: str, port: int) -> list[str]:
            try:
                address = ipaddress.ip_address(host)
            except ValueError:
                return await addresses_of(host, port, rules, resolver)
            if why := rules.refuse(address):
                raise refusal(why)
            return [host]

        async def connect_unix_socket(self, path: str, timeout: float | None = None, socket_options: Any = None) -> Any:
            raise Invalid("Requests to local sockets are not allowed.", code="url_not_allowed")

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    return Pinned()
