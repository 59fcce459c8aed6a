"""Connections of a server: the head of a request comes in time and has a size, before anybody knows who asks.

There is no timer for each of them: the server looks at all once a second (`let_go`). Between two requests a connection
rests for as long as it is kept alive; what comes then begins another head.
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
"""The same while more than half of the connections that a server takes are open."""
UNREAD_SECONDS = 120.0
"""How long nothing may be taken of an answer."""

_BETWEEN, _HEAD, _BODY = range(3)
"""Where in a request the last byte was. Plain numbers: they are looked at for every part that comes."""


class Connection(HttpToolsProtocol):
    """One connection. `waits_since` is when it began to owe us a head, `unread_since` when it stopped to read; or 0."""

    # Beside the dictionary of what is inherited, which is slower for every name if it grows beyond thirty.
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
        # One that came in small parts was counted.
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
        """Say why not, and hang up."""
        if self.transport.is_closing():
            return
        refusal = self._refusal or Invalid(msg or "This is no request.", code="invalid_http")
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
    """Hang up on whoever owes us a head for too long, or reads nothing of an answer."""
    overdue = at - (CROWDED_SECONDS if is_crowded else HEAD_SECONDS)
    unread = at - UNREAD_SECONDS
    gone = [one for one in connections if 0 < one.waits_since < overdue or 0 < one.unread_since < unread]
    for one in gone:
        one.transport.abort()
