"""Events as server-sent events, live and resumable after every single event.

An event's id is its cursor. A client that reconnects with `Last-Event-ID` resumes right after it, without loss or
repetition. However many clients read, the server queries the database once per poll.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.responses import Response, StreamingResponse

from holdfast.engine.queries.events import cursor_of
from holdfast.errors import Invalid
from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import ApiRequest, Endpoint

ALIVE_SECONDS = 30.0
"""The longest time without a message, and without a check that the caller is still authorized."""
ALIVE_PARTS = (0.8, 1.0)
"""Each stream uses a random share of it, so that streams opened together after a restart spread out."""


async def events(api_request: ApiRequest) -> Response:
    """Stream events after `Last-Event-ID` (or `?after=`), else from now on; `?after=0:0` begins at the start."""
    header = api_request.request.headers.get("last-event-id")
    cursor_text = header if header is not None else api_request.request.query_params.get("after")
    api_request.server_state.streams.require_stream(api_request.caller)
    return StreamingResponse(
        _stream(api_request, _cursor(cursor_text) if cursor_text else None),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def _cursor(cursor_text: str) -> str:
    """Return the id of an event as a cursor that the database can read."""
    xid, seq, _ = cursor_of(cursor_text)
    if int(xid) >= 2**64 or seq >= 2**63:
        raise Invalid(f"{cursor_text[:80]!r} is not the id of an event.", code="invalid_cursor", advice="Omit it.")
    return cursor_text


async def _stream(api_request: ApiRequest, cursor_text: str | None) -> AsyncIterator[bytes]:
    closing, asked_at = api_request.server_state.closing, time.monotonic()
    alive_seconds = ALIVE_SECONDS * random.uniform(*ALIVE_PARTS)
    async with AsyncExitStack() as stack:
        stack.enter_context(api_request.server_state.streams.stream(api_request.caller))
        follower = await stack.enter_async_context(
            api_request.server_state.tail.following(api_request.caller.tenant_id)
        )
        cursor = follower.cursor if cursor_text is None else cursor_text
        yield b": connected\n\n"
        while not closing.is_set():
            if time.monotonic() - asked_at > alive_seconds:
                if not await api_request.has_valid_credentials():
                    return
                asked_at = time.monotonic()
            changed = follower.changed
            page, encoded = follower.page, b""
            if page.start == cursor:
                encoded, cursor = page.encoded, page.end
            elif cursor != follower.cursor:
                page = await follower.read(cursor)
                encoded, cursor = page.encoded, follower.joined(page)
            if encoded:
                yield encoded
            if encoded or follower.is_ahead(cursor):
                continue
            try:
                async with asyncio.timeout(alive_seconds):
                    await changed.wait()
            except TimeoutError:
                yield b": alive\n\n"


ENDPOINTS = (Endpoint(method="GET", path="/api/v1/events", access=Access.VIEWER, handler=events),)
