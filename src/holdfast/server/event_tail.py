"""The end of the event log, followed once for all streams: one query per poll, whatever the number of readers.

A reader at the follower's position gets the bytes that the follower encoded. A reader that is behind queries for itself
until it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from holdfast.engine.engine import Engine
from holdfast.engine.queries.event_subjects import EventContext, contexts_of
from holdfast.engine.queries.events import Event, cursor_of, event_tail, events_after, position
from holdfast.store.database import ANY_DB_ERROR

log = logging.getLogger("holdfast.server")

LOOK_SECONDS = 0.5
BATCHES = 100


class EncodedPage(msgspec.Struct, frozen=True):
    """The encoded events after one cursor, up to the end of the last batch.

    Between `end` and `looked` there are no more events of this tenant.
    """

    start: str
    encoded: bytes
    end: str
    looked: str
    is_all: bool = True


class Follower:
    """Follows the end of one tenant's events.

    `cursor` moves when events were published. The next poll starts where the last one ended, after the events of other
    tenants.
    """

    def __init__(self, engine: Engine, tenant_id: int, cursor: str) -> None:
        self.cursor = cursor
        self.page = EncodedPage(cursor, b"", cursor, cursor)
        self.changed = asyncio.Event()
        self.readers = 0
        self._engine = engine
        self._tenant_id = tenant_id
        self.looked = cursor

    async def read(self, cursor: str) -> EncodedPage:
        """Return the events after a cursor."""
        found = await events_after(self._engine.database, self._tenant_id, cursor, limit=BATCHES)
        end = cursor
        if found.events:
            xid, seq, _ = cursor_of(found.events[-1].cursor)
            end = f"{xid}:{seq}"
        contexts = await contexts_of(self._engine.database, found.events)
        lines = b"".join(map(encoded, found.events, contexts))
        return EncodedPage(cursor, lines, end, found.cursor, found.is_all)

    async def follow(self) -> None:
        outage = self._engine.database.outage
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                while not await self.poll():
                    pass
                outage.answered("event stream")
            except ANY_DB_ERROR as error:
                outage.failed("event stream", error)

    async def poll(self) -> bool:
        """Publish new events to the readers; return whether these were all."""
        page = await self.read(self.looked)
        self.looked = page.looked
        if page.encoded:
            # For a reader at the cursor, the events skipped since then contained nothing of its tenant.
            self.page, self.cursor = msgspec.structs.replace(page, start=self.cursor), page.end
            self.wake()
        return page.is_all

    def joined(self, page: EncodedPage) -> str:
        """Return where a reader continues that queried for itself.

        It joins the follower's position where that neither misses nor repeats an event.
        """
        if page.encoded:
            return page.end
        if self.is_ahead(page.looked):
            return page.looked
        # All events published from here on come after `looked`, and there was none between the page's start and
        # `looked`.
        return self.cursor if position(page.start) <= position(self.looked) else page.start

    def is_ahead(self, cursor: str) -> bool:
        """Return whether events after this cursor were published."""
        return position(cursor) < position(self.cursor)

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class EventTail:
    """The followers of one server: one for each tenant with readers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._followers: dict[int, Follower] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def following(self, tenant_id: int) -> AsyncIterator[Follower]:
        """Yield the follower of a tenant's events; the first reader starts it, the last one ends it."""
        async with self._starting:
            if (follower := self._followers.get(tenant_id)) is None:
                follower = Follower(self._engine.of(tenant_id), tenant_id, await event_tail(self._engine.database))
                self._followers[tenant_id] = follower
                self._tasks[tenant_id] = asyncio.create_task(follower.follow(), name="holdfast-tail")
            follower.readers += 1
        try:
            yield follower
        finally:
            follower.readers -= 1
            if not follower.readers and self._followers.get(tenant_id) is follower:
                del self._followers[tenant_id]
                self._tasks.pop(tenant_id).cancel()

    def close(self) -> None:
        """Wake every reader, so that it sees that the server closes."""
        for follower in self._followers.values():
            follower.wake()


def encoded(event: Event, context: EventContext) -> bytes:
    """Encode an event as a server-sent event."""
    data = {
        "at": event.at,
        "kind": event.kind,
        "task_id": event.task_id or None,
        "attempt": event.attempt if event.task_id else None,
        "action": context.action,
        "queue": context.queue,
        "run_id": context.run_id,
        "detail": event.detail,
    }
    head = f"id: {event.cursor}\nevent: {event.kind}\ndata: ".encode()
    return head + msgspec.json.encode(data) + b"\n\n"
