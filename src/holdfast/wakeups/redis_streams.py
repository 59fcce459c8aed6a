"""Hints over a Redis stream: one consumer group, in which every worker reads under one consumer name.

An entry is hidden from other readers until it was idle for the visibility time; then the next reader gets it. The
consumer name plays no part in that, so all workers share one and no stale consumers remain. The stream is trimmed,
because hints need not be kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from holdfast.core.wakeups.hint import Hint
from holdfast.wakeups.contract import HintDelivery, away, sends_of

GROUP = "holdfast"
READER = "worker"
ENTRIES_MAX = 100_000
CONNECT_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 5.0
WAIT_SECONDS_MAX = 60.0
TRIMMED_MAX = 100
FROM_THE_FIRST = "0-0"


class RedisStream:
    """One stream of one Redis."""

    def __init__(self, url: str, key: str, *, visibility_seconds: float) -> None:
        self.key = key
        self._hidden_ms = max(1, int(visibility_seconds * 1000))
        self._autoclaim_from: Any = FROM_THE_FIRST
        self._client: Any = redis.from_url(
            url,
            socket_connect_timeout=CONNECT_SECONDS_MAX,
            socket_timeout=WAIT_SECONDS_MAX + ANSWER_SECONDS_MAX,
            decode_responses=False,
        )

    async def publish(self, hints: Sequence[Hint]) -> None:
        async with self._trouble():
            line = self._client.pipeline(transaction=False)
            for hint in hints:
                entry = {"body": hint.body(), "taskType": hint.action, "sends": str(hint.sends or "")}
                line.xadd(self.key, entry, maxlen=ENTRIES_MAX, approximate=True)
            await line.execute()

    async def receive(self, count: int, *, wait_seconds: float) -> list[HintDelivery]:
        """Receive messages: those that others left too long come before unread ones."""
        async with self._trouble():
            for _ in range(2):
                try:
                    return await self._receive(count, min(wait_seconds, WAIT_SECONDS_MAX))
                except ResponseError as error:
                    if not str(error).startswith("NOGROUP"):
                        raise
                await self._begin()
        return []

    async def _receive(self, count: int, wait_seconds: float) -> list[HintDelivery]:
        if found := await self._left(count):
            return found
        wait_ms = max(1, int(wait_seconds * 1000))
        read = await self._client.xreadgroup(GROUP, READER, {self.key: ">"}, count=count, block=wait_ms)
        streams = read.values() if isinstance(read, dict) else [entries for _, entries in read or ()]
        return [_delivery(entry_id, fields) for entries in streams for entry_id, fields in _flat(entries)]

    async def _left(self, count: int) -> list[HintDelivery]:
        """Return messages that others left too long.

        Each scan continues where the last one ended, so that messages which are not due yet do not hide those after
        them.
        """
        claimed = await self._client.xautoclaim(
            self.key, GROUP, READER, self._hidden_ms, self._autoclaim_from, count=count
        )
        self._autoclaim_from = claimed[0]
        if any(entry_id is None for entry_id, _ in claimed[1]):
            await self.forget_trimmed()
        return [_delivery(entry_id, fields) for entry_id, fields in claimed[1] if fields]

    async def forget_trimmed(self) -> None:
        """Acknowledge entries that were trimmed from the stream: Redis 6.2 leaves them pending and does not
        name them.
        """
        pending = await self._client.xpending_range(self.key, GROUP, min="-", max="+", count=TRIMMED_MAX)
        ids = [entry["message_id"] for entry in pending]
        line = self._client.pipeline(transaction=False)
        for entry_id in ids:
            line.xrange(self.key, min=entry_id, max=entry_id)
        found = await line.execute()
        if gone := [entry_id for entry_id, entries in zip(ids, found, strict=True) if not entries]:
            await self._client.xack(self.key, GROUP, *gone)

    async def _begin(self) -> None:
        """Create stream and group; a Redis that was flushed needs both again."""
        try:
            await self._client.xgroup_create(self.key, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def extend(self, deliveries: Sequence[HintDelivery]) -> None:
        if not deliveries:
            return
        async with self._trouble():
            ids = [delivery.receipt for delivery in deliveries]
            await self._client.xclaim(self.key, GROUP, READER, 0, ids, justid=True)

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        if not deliveries:
            return
        async with self._trouble():
            ids = [delivery.receipt for delivery in deliveries]
            line = self._client.pipeline(transaction=False)
            line.xack(self.key, GROUP, *ids)
            line.xdel(self.key, *ids)
            await line.execute()

    async def check(self) -> str:
        async with self._trouble():
            return f"Redis stream {self.key}, {await self._client.xlen(self.key)} messages"

    async def close(self) -> None:
        try:
            await self._client.aclose()
        except (RedisError, OSError):
            return

    @asynccontextmanager
    async def _trouble(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:  # a library may raise anything, and a hint must never end a worker
            raise away(f"Redis stream {self.key}", error) from error


def _flat(entries: Any) -> Any:
    """Return one list of entries; newer protocols wrap it in another."""
    return entries[0] if entries and isinstance(entries[0], list) else entries


def _delivery(entry_id: bytes, fields: dict[bytes, bytes]) -> HintDelivery:
    body = fields.get(b"body", b"").decode(errors="replace")
    return HintDelivery(body=body, receipt=entry_id.decode(), sends=sends_of(fields.get(b"sends", b"")))
