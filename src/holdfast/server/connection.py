"""Connections of a server, with limits on the time and size of a request head, before the caller is authenticated.

There is no timer per connection: the server checks all of them once a second (`let_go`). Between two requests a
connection may be idle for the keep-alive time; the next byte starts another head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.errors import HoldfastError, Invalid
from holdfast.server.problems import problem
from holdfast.server.security_headers import HEADERS

HEAD_BYTES_MAX = 64 * 1024
HEAD_SECONDS = 20.0
CROWDED_SECONDS = 2.0
"""The limit on the time of a head while more than half of the server's connections are open."""
UNREAD_SECONDS = 120.0
"""How long a client may read nothing of a response."""

_BETWEEN, _HEAD, _BODY = range(3)
"""The part of a request that the last byte belonged to. Plain integers, because they are compared for every chunk."""


class Connection(HttpToolsProtocol):
    """One connection.

    `waits_since`: when it began to owe a request head; `unread_since`: when it stopped reading; or 0.
    """

    # Slots, not the inherited instance dictionary, which gets slower for every name beyond thirty entries.
    __slots__ = ("_at", "_head_bytes", "_part_bytes", "_refusal", "unread_since", "waits_since")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waits_since = self.unread_since = 0.0
        self._at = _BETWEEN
        self._part_bytes = self._head_bytes = 0
        self._refusal: HoldfastError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waits_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        before, self._part_bytes = self._at, len(data)
        super().data_received(data)
        if self._at == _HEAD and before != _BODY:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refusal = _too_large()
                self.send_400_response("")
        if not self.waits_since and (self.cycle is None or self.cycle.response_complete):
            self.waits_since = self.loop.time()

    def on_message_begin(self) -> None:
        self._at, self._head_bytes = _HEAD, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        # A head that came in small chunks is counted in data_received.
        if self._part_bytes > HEAD_BYTES_MAX and self._size() > HEAD_BYTES_MAX:
            self._refusal = _too_large()
            raise self._refusal
        self._at, self.waits_since = _BODY, 0.0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._at = _BETWEEN
        super().on_message_complete()

    def pause_writing(self) -> None:
        self.unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.unread_since = 0.0
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Send the reason and close the connection."""
        if self.transport.is_closing():
            return
        refusal = self._refusal or Invalid(msg or "The request is malformed.", code="invalid_http")
        answer = problem(refusal)
        headers = {**HEADERS, **answer.headers, "connection": "close"}
        status = HTTPStatus(answer.status_code)
        head = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + bytes(answer.body))
        self.transport.close()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)


def _too_large() -> Invalid:
    return Invalid(
        f"The head of the request is larger than {HEAD_BYTES_MAX} bytes.", code="head_too_large", limit=HEAD_BYTES_MAX
    )


def let_go(connections: Iterable[Any], at: float, *, is_crowded: bool) -> None:
    """Abort connections that owe a request head for too long, or read nothing of a response."""
    overdue = at - (CROWDED_SECONDS if is_crowded else HEAD_SECONDS)
    unread = at - UNREAD_SECONDS
    gone = [
        connection
        for connection in connections
        if 0 < connection.waits_since < overdue or 0 < connection.unread_since < unread
    ]
    for connection in gone:
        connection.transport.abort()
