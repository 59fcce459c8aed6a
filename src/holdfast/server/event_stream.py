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


async def events(asked: ApiRequest) -> Response:
    """Stream events after `Last-Event-ID` (or `?after=`), else from now on; `?after=0:0` begins at the start."""
    header = asked.request.headers.get("last-event-id")
    given = header if header is not None else asked.request.query_params.get("after")
    asked.server_state.streams.require_stream(asked.caller)
    return StreamingResponse(
        _stream(asked, _cursor(given) if given else None),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def _cursor(given: str) -> str:
    """Return the id of an event as a cursor that the database can read."""
    xid, seq, _ = cursor_of(given)
    if int(xid) >= 2**64 or seq >= 2**63:
        raise Invalid(f"{given[:80]!r} is not the id of an event.", code="invalid_cursor", advice="Omit it.")
    return given


async def _stream(asked: ApiRequest, given: str | None) -> AsyncIterator[bytes]:
    closing, asked_at = asked.server_state.closing, time.monotonic()
    alive_seconds = ALIVE_SECONDS * random.uniform(*ALIVE_PARTS)
    async with AsyncExitStack() as stack:
        stack.enter_context(asked.server_state.streams.stream(asked.caller))
        follower = await stack.enter_async_context(asked.server_state.tail.following(asked.caller.tenant_id))
        cursor = follower.cursor if given is None else given
        yield b": connected\n\n"
        while not closing.is_set():
            if time.monotonic() - asked_at > alive_seconds:
                if not await asked.has_valid_credentials():
                    return
                asked_at = time.monotonic()
            changed = follower.changed
            page, told = follower.page, b""
            if page.start == cursor:
                told, cursor = page.told, page.end
            elif cursor != follower.cursor:
                page = await follower.read(cursor)
                told, cursor = page.told, follower.joined(page)
            if told:
                yield told
            if told or follower.is_ahead(cursor):
                continue
            try:
                async with asyncio.timeout(alive_seconds):
                    await changed.wait()
            except TimeoutError:
                yield b": alive\n\n"


ENDPOINTS = (Endpoint(method="GET", path="/api/v1/events", access=Access.VIEWER, handler=events),)
