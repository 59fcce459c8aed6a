"""Events as server-sent events: what happens to tasks, as it happens, resumable at every single event.

An event's id is its cursor. A reader that comes back with `Last-Event-ID` goes on right behind it, losing nothing and
repeating nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from holdfast.api.edge import Asked, Endpoint
from holdfast.api.identity import Access
from holdfast.dispatcher.observe import Event, cursor_of, event_tail, events_after
from holdfast.errors import Invalid

LOOK_SECONDS = 0.5
ALIVE_SECONDS = 15.0
BATCHES = 100


async def events(asked: Asked) -> Response:
    """Events after `Last-Event-ID` (or `?after=`), else from now on; `?after=0:0` begins at the start."""
    header = asked.request.headers.get("last-event-id")
    given = header if header is not None else asked.request.query_params.get("after")
    cursor = _cursor(given) if given else await event_tail(asked.engine.database)
    return StreamingResponse(
        _stream(asked, cursor),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def _cursor(given: str) -> str:
    """The id of an event as a cursor that the database can read."""
    xid, seq, _ = cursor_of(given)
    if int(xid) >= 2**64 or seq >= 2**63:
        raise Invalid(f"{given[:80]!r} is not the id of an event.", code="invalid_cursor", advice="Leave it out.")
    return given


async def _stream(asked: Asked, cursor: str) -> AsyncIterator[bytes]:
    closing = asked.house.closing
    silent_seconds = 0.0
    yield b": connected\n\n"
    while not closing.is_set():
        found = await events_after(asked.engine.database, asked.caller.tenant_id, cursor, limit=BATCHES)
        for event in found:
            yield _told(event)
        if found:
            cursor, silent_seconds = found[-1].cursor, 0.0
            continue
        silent_seconds += LOOK_SECONDS
        if silent_seconds >= ALIVE_SECONDS:
            if not await asked.is_still_welcome():
                return
            silent_seconds = 0.0
            yield b": alive\n\n"
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await closing.wait()
        except TimeoutError:
            continue


def _told(event: Event) -> bytes:
    """An event as it goes over the wire."""
    data = {
        "at": event.at,
        "kind": event.kind,
        "task_id": event.task_id,
        "attempt": event.attempt,
        "detail": event.detail,
    }
    head = f"id: {event.cursor}\nevent: {event.kind}\ndata: ".encode()
    return head + msgspec.json.encode(data) + b"\n\n"


ENDPOINTS = (Endpoint(method="GET", path="/api/v1/events", access=Access.VIEWER, handler=events),)
