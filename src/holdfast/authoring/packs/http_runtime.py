"""The `http` runtime: an attempt is one request, and the response status decides its outcome.

The pack decides where a request goes, never the input. Scheme, host and port are literal. Inputs inside the path and
the query are escaped and cannot be `.` or `..` as a path segment. Redirects are not followed unless the pack enables
them. So no input can reach another resource, or another host in the worker's network. The task id is sent as an
idempotency key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from holdfast.authoring.context import Context
from holdfast.authoring.packs.parameters import Parameter, filled
from holdfast.authoring.packs.template import render, render_text

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES_MAX = 8 * 1024 * 1024
BODY_CHARACTERS_SHOWN = 500
CONNECT_SECONDS = 10.0

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


class RequestFailed(Exception):
    """A response that is not a success; `code` is `http_STATUS`, and `headers` may contain a Retry-After."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.code = f"http_{status}"
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """The request to send. `url`, `headers`, `query` and `body` are templates."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    parameters: tuple[Parameter, ...] = ()
    timeout_seconds: float = 30.0
    follows_redirects: bool = False

    async def __call__(self, ctx: Context, **task_input: Any) -> dict[str, Any]:
        """Send the request; the output is `{"status", "headers", "body"}`, with a JSON body decoded."""
        import httpx

        values = filled(task_input, self.parameters)
        headers = httpx.Headers({"Idempotency-Key": ctx.task_id})
        headers.update({name: _one_line(render_text(text, values)) for name, text in self.headers.items()})
        request = _client().build_request(
            self.method,
            rendered_url(self.url, values),
            params=render(dict(self.query), values) or None,
            headers=headers,
            json=None if self.body is None else render(self.body, values),
            timeout=httpx.Timeout(self.timeout_seconds, connect=min(CONNECT_SECONDS, self.timeout_seconds)),
        )
        answer = await _client().send(request, stream=True, follow_redirects=self.follows_redirects)
        try:
            return _output(answer, await _read(answer))
        finally:
            await answer.aclose()


class UnsafeSegment(Exception):
    """An input would change the path of a request."""

    code = "invalid_parameters"

    def __init__(self, template: str, segment: str) -> None:
        super().__init__(f"invalid parameters: {template} would become the path segment {segment!r}")


def rendered_url(template: str, values: Mapping[str, Any]) -> str:
    """Fill in a URL. No input can add a path segment, remove one (`..`, `.`) or leave one empty."""
    path, mark, query = template.partition("?")
    segments = [_segment(segment, values) for segment in path.split("/")]
    return "/".join(segments) + mark + render_text(query, values, _quoted)


def _segment(template: str, values: Mapping[str, Any]) -> str:
    segment = render_text(template, values, _quoted)
    if template != segment and segment in ("", ".", ".."):
        raise UnsafeSegment(template, segment)
    return segment


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _client() -> httpx.AsyncClient:
    """Return the client of this event loop, so that connections are reused."""
    import httpx

    loop = asyncio.get_running_loop()
    if (client := _clients.get(loop)) is None:
        client = _clients[loop] = httpx.AsyncClient(trust_env=False)
    return client


async def _read(answer: httpx.Response) -> bytes:
    parts = bytearray()
    async for part in answer.aiter_bytes():
        parts += part
        if len(parts) > ANSWER_BYTES_MAX:
            raise RequestFailed(413, f"validation: the response has more than {ANSWER_BYTES_MAX} bytes", {})
    return bytes(parts)


def _output(answer: httpx.Response, body: bytes) -> dict[str, Any]:
    status = answer.status_code
    text = body.decode(answer.encoding or "utf-8", errors="replace")
    if not 200 <= status < 300:
        said = " ".join(text.split())[:BODY_CHARACTERS_SHOWN]
        message = f"{answer.request.method} {answer.request.url.copy_with(query=None)} returned {status}: {said}"
        raise RequestFailed(status, message.rstrip(": "), dict(answer.headers))
    return {"status": status, "headers": dict(answer.headers), "body": _decoded(answer, text)}


def _decoded(answer: httpx.Response, text: str) -> Any:
    if "json" not in answer.headers.get("content-type", ""):
        return text
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _one_line(text: str) -> str:
    """Remove line breaks, so that no input can add a header."""
    return "".join(character for character in text if character.isprintable())
