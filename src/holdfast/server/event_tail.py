"""The tail of the events, followed once for everybody who streams it: one query a look, whatever the number of readers.

A reader that stands where the follower stood gets the very bytes the follower read; one that is behind reads for itself
until it is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from holdfast.engine.engine import Engine
from holdfast.engine.queries.event_subjects import EventPlace, places_of
from holdfast.engine.queries.events import Event, cursor_of, event_tail, position, told_after
from holdfast.store.database import ANY_DB_ERROR

log = logging.getLogger("holdfast.api")

LOOK_SECONDS = 0.5
BATCHES = 100


class EncodedPage(msgspec.Struct, frozen=True):
    """What came after one cursor, as it goes over the wire, up to another: the end of the last batch of it.

    Between `end` and `looked` there was nothing more of this tenant.
    """

    start: str
    told: bytes
    end: str
    looked: str
    is_all: bool = True


class Follower:
    """Stands at the end of one tenant's events.

    `cursor` moves when something was told; the next look begins where the last one ended, behind the events of others.
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
        """What comes after a cursor now."""
        found = await told_after(self._engine.database, self._tenant_id, cursor, limit=BATCHES)
        end = cursor
        if found.events:
            xid, seq, _ = cursor_of(found.events[-1].cursor)
            end = f"{xid}:{seq}"
        places = await places_of(self._engine.database, found.events)
        lines = b"".join(map(told, found.events, places))
        return EncodedPage(cursor, lines, end, found.cursor, found.is_all)

    async def follow(self) -> None:
        outage = self._engine.database.outage
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                while not await self.look():
                    pass
                outage.answered("event stream")
            except ANY_DB_ERROR as error:
                outage.failed("event stream", error)

    async def look(self) -> bool:
        """Tell the readers what is new; whether that was all."""
        page = await self.read(self.looked)
        self.looked = page.looked
        if page.told:
            # To a reader that stands at the cursor, what was passed since held nothing.
            self.page, self.cursor = msgspec.structs.replace(page, start=self.cursor), page.end
            self.wake()
        return page.is_all

    def joined(self, page: EncodedPage) -> str:
        """Where a reader goes on that read a page for itself: with everybody, where that misses and repeats nothing."""
        if page.told:
            return page.end
        if self.is_ahead(page.looked):
            return page.looked
        # All that will be told from here on is behind what was looked at, and that held nothing after the page's start.
        return self.cursor if position(page.start) <= position(self.looked) else page.start

    def is_ahead(self, cursor: str) -> bool:
        """Whether more was told than what a reader at a cursor knows."""
        return position(cursor) < position(self.cursor)

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class EventTail:
    """The followers of one server: one for each tenant that somebody reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._followers: dict[int, Follower] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def following(self, tenant_id: int) -> AsyncIterator[Follower]:
        """The follower of a tenant's events; the first reader starts it, the last one ends it."""
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
        """Let every reader see that the server closes."""
        for follower in self._followers.values():
            follower.wake()


def told(event: Event, place: EventPlace) -> bytes:
    """An event as it goes over the wire."""
    data = {
        "at": event.at,
        "kind": event.kind,
        "task_id": event.task_id or None,
        "attempt": event.attempt if event.task_id else None,
        "action": place.action,
        "queue": place.queue,
        "run_id": place.run_id,
        "detail": event.detail,
    }
    head = f"id: {event.cursor}\nevent: {event.kind}\ndata: ".encode()
    return head + msgspec.json.encode(data) + b"\n\n"
