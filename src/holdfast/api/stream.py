"""Events as server-sent events: what happens to tasks, as it happens, resumable at every single event.

An event's id is the cursor of the batch it was recorded in and its place there. A reader that comes back with
`Last-Event-ID` goes on right behind it, losing nothing and repeating nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from holdfast.api.edge import Asked, Endpoint
from holdfast.api.identity import Access
from holdfast.dispatcher.observe import Event, event_tail, events_after
from holdfast.errors import Invalid

LOOK_SECONDS = 0.5
ALIVE_SECONDS = 15.0
BATCHES = 100

_ID = re.compile(r"(\d{1,20}):(\d{1,19})(?:\.(\d{1,9}))?")


async def events(asked: Asked) -> Response:
    """Events after `Last-Event-ID` (or `?after=`), else from now on; `?after=0:0` begins at the start."""
    header = asked.request.headers.get("last-event-id")
    given = header if header is not None else asked.request.query_params.get("after")
    cursor, seen = _position(given) if given else (await event_tail(asked.engine.database), 0)
    return StreamingResponse(
        _stream(asked, cursor, seen),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def _position(given: str) -> tuple[str, int]:
    """Where to read on: the cursor before the batch, and how many of its events were seen."""
    found = _ID.fullmatch(given)
    if found is None or int(found[1]) >= 2**64 or int(found[2]) >= 2**63:
        raise Invalid(f"{given[:80]!r} is not the id of an event.", code="invalid_cursor", advice="Leave it out.")
    if found[3] is None:
        return f"{found[1]}:{found[2]}", 0
    return f"{found[1]}:{int(found[2]) - 1}", int(found[3]) + 1


async def _stream(asked: Asked, cursor: str, seen: int) -> AsyncIterator[bytes]:
    closing = asked.house.closing
    silent_seconds = 0.0
    yield b": connected\n\n"
    while not closing.is_set():
        found = await events_after(asked.engine.database, asked.caller.tenant_id, cursor, limit=BATCHES)
        for text in _told(found, seen):
            yield text
        seen, silent_seconds = 0, 0.0 if found else silent_seconds + LOOK_SECONDS
        if found:
            cursor = found[-1].cursor
            continue
        if silent_seconds >= ALIVE_SECONDS:
            silent_seconds = 0.0
            yield b": alive\n\n"
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await closing.wait()
        except TimeoutError:
            continue


def _told(found: list[Event], seen: int) -> list[bytes]:
    """Events as they go over the wire, without the first `seen` of the first batch."""
    texts: list[bytes] = []
    place, batch = -1, ""
    for event in found:
        place = place + 1 if event.cursor == batch else 0
        batch = event.cursor
        if batch == found[0].cursor and place < seen:
            continue
        data = {
            "at": event.at,
            "kind": event.kind,
            "task_id": event.task_id,
            "attempt": event.attempt,
            "detail": event.detail,
        }
        head = f"id: {event.cursor}.{place}\nevent: {event.kind}\ndata: ".encode()
        texts.append(head + msgspec.json.encode(data) + b"\n\n")
    return texts


ENDPOINTS = (Endpoint(method="GET", path="/api/v1/events", access=Access.VIEWER, handler=events),)
