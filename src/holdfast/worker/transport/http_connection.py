"""Requests to a server over one kept-alive HTTP/1.1 connection, one at a time.

For the worker contract only: JSON requests and responses that are safe to repeat. If a kept connection turns out to be
closed, it is replaced and the request is repeated once, silently. Every other failure on the way is raised as
`Unavailable`. What the server refuses is raised as the server's error.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import (
    Conflict,
    EffectDenied,
    EffectRefused,
    Forbidden,
    HoldfastError,
    Invalid,
    InvalidSettings,
    LeaseLost,
    NotFound,
    Unauthorized,
    Unavailable,
)
from holdfast.net.server_url import is_loopback, require_secure_url
from holdfast.net.sockets import detect_partitions
from holdfast.settings.settings import Settings

T = TypeVar("T")

CONNECT_SECONDS_MAX = 2.0
"""Time limit for connecting. During a partition the kernel repeats the first packet less and less often, and would
notice the end of the partition late; a new connection begins with a fresh packet.
"""
ANSWER_SECONDS_MAX = 60.0
HEAD_BYTES_MAX = 64 * 1024
DEV_HEADER = "x-dev-user"
DEV_NAME = "worker"

_CONNECTION_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    TimeoutError,
    ValueError,
    asyncio.LimitOverrunError,
)
_ERROR_BY_CATEGORY: Mapping[str, type[HoldfastError]] = {
    "validation": Invalid,
    "not_found": NotFound,
    "conflict": Conflict,
    "state_transition": Conflict,
    "lease": LeaseLost,
    "effect": EffectRefused,
    "unavailable": Unavailable,
}


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server's address, and the credentials to use there."""

    host: str
    port: int
    prefix: str
    is_secure: bool
    headers: str
    shown: str

    @classmethod
    def of(cls, url: str, settings: Settings) -> Server:
        """Parse the URL.

        Raise `InvalidSettings` if it is malformed, credentials are missing, or a token would be sent unencrypted.
        """
        parts = urlsplit(url)
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise _bad_url(url, str(error)) from error
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
            raise _bad_url(url, "it should look like https://server.example")
        is_secure = parts.scheme == "https"
        name = f"[{host}]" if ":" in host else host
        shown = f"{name}:{port}" if port else name
        return cls(
            host=host,
            port=port or (443 if is_secure else 80),
            prefix=parts.path.rstrip("/"),
            is_secure=is_secure,
            headers=f"host: {shown}\r\n{_credentials(settings, url, host)}accept: application/json\r\n",
            shown=f"{parts.scheme}://{shown}",
        )


def _credentials(settings: Settings, url: str, host: str) -> str:
    if settings.token:
        require_secure_url(url)
        if not settings.token.isascii() or not settings.token.isprintable() or " " in settings.token:
            raise InvalidSettings("HOLDFAST_TOKEN is not a token.", code="invalid_token")
        return f"authorization: Bearer {settings.token}\r\n"
    if settings.is_local and is_loopback(host):
        return f"{DEV_HEADER}: {DEV_NAME}\r\n"
    raise InvalidSettings(
        "A worker needs a token to speak to a server.",
        code="token_missing",
        advice="Set HOLDFAST_TOKEN; on your own machine HOLDFAST_ENV=local will do.",
    )


def _bad_url(url: str, why: str) -> InvalidSettings:
    shown = url.partition("://")[2].rpartition("@")[2].partition("?")[0]
    return InvalidSettings(f"{shown!r} is not the URL of a server: {why}.", code="invalid_url")


class HttpConnection:
    """One connection to a server, opened when it is needed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.is_busy = False

    async def get(self, path: str, kind: type[T]) -> T:
        return await self._request("GET", path, b"", kind, ANSWER_SECONDS_MAX)

    async def post(
        self,
        path: str,
        body: Any,
        kind: type[T],
        *,
        seconds_max: float = ANSWER_SECONDS_MAX,
        may_repeat: bool = True,
    ) -> T:
        """Return the response as `kind`. A cancelled or late call closes the connection, which the server notices.

        Pass `may_repeat=False` if the caller must react to a lost response.
        """
        return await self._request("POST", path, msgspec.json.encode(body), kind, seconds_max, may_repeat=may_repeat)

    def drop(self) -> None:
        """Close the connection now; the next call opens another."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _request(
        self, method: str, path: str, body: bytes, kind: type[T], seconds_max: float, *, may_repeat: bool = True
    ) -> T:
        may_repeat = may_repeat and self._streams is not None
        self.is_busy = True
        try:
            async with asyncio.timeout(seconds_max):
                try:
                    status, answer = await self._send(method, path, body)
                except (ConnectionError, EOFError):
                    self.drop()
                    if not may_repeat:
                        raise
                    # The server closes connections that were idle for long; this may have been one.
                    status, answer = await self._send(method, path, body)
        except _CONNECTION_ERRORS as error:
            self.drop()
            raise self._unreachable(str(error) or type(error).__name__) from error
        except BaseException:
            self.drop()
            raise
        finally:
            self.is_busy = False
        if status != 200:
            raise self._refusal(status, answer)
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._unreachable(f"its answer cannot be read: {error}", is_lasting=True) from error

    async def _send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        reader, writer = self._streams or await self._connect()
        server = self._server
        kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if method == "POST" else ""
        writer.write(f"{method} {server.prefix}{path} HTTP/1.1\r\n{server.headers}{kind}\r\n".encode() + body)
        await writer.drain()
        status, headers = await _read_head(reader)
        while status == 100:
            status, headers = await _read_head(reader)
        answer = await _read_body(reader, headers)
        if headers.get("connection", "").lower() == "close":
            self.drop()
        return status, answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        server = self._server
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            self._streams = await asyncio.open_connection(
                server.host,
                server.port,
                ssl=ssl.create_default_context() if server.is_secure else None,
                limit=HEAD_BYTES_MAX,
            )
        detect_partitions(self._streams[1].get_extra_info("socket"))
        return self._streams

    def _unreachable(self, why: str, *, is_lasting: bool = False) -> Unavailable:
        return Unavailable(
            f"The server at {self._server.shown} does not answer: {why}.",
            code="server_unreachable",
            advice="Check HOLDFAST_URL and that `holdfast server` runs there.",
            is_lasting=is_lasting,
        )

    def _refusal(self, status: int, answer: bytes) -> HoldfastError:
        """Convert the server's problem response to the error it stands for."""
        try:
            problem = msgspec.json.decode(answer, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            # A proxy whose server restarts answers 5xx; any other status does not come from a Holdfast server.
            return self._unreachable(f"it answered {status}", is_lasting=status < 500)
        detail, code = str(problem.pop("detail", "")), str(problem.pop("code", "internal_error"))
        category, advice = problem.pop("category", ""), str(problem.pop("advice", ""))
        fields = {name: value for name, value in problem.items() if name not in ("type", "title", "status")}
        if code == EffectDenied.default_code:
            kind: type[HoldfastError] = EffectDenied
        elif status in (401, 403):
            kind = Unauthorized if status == 401 else Forbidden
        elif status == 404 and category == "validation":
            kind = NotFound
        else:
            kind = _ERROR_BY_CATEGORY.get(str(category), Unavailable)
        return kind(detail or f"The server answered {status}.", code=code, advice=advice, **fields)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("this is not HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), headers


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(parts)
