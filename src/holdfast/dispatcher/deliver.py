"""Deliver: send events to webhooks, in order, at least once each, by one holder per webhook.

A pass leases the webhooks that are due and that nobody holds, and sends to all of them at once. The cursor moves after
every event that was taken, under the lease's token: a process that dies repeats one event at most, under the same id,
and one that lost its lease moves nothing. What a receiver does not take holds back what comes after it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast import webhooks
from holdfast.core.webhook import Filter, after_failure, body_of, delivery_id
from holdfast.dispatcher.audit import Change, audit
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.observe import Event, told_after
from holdfast.errors import Invalid
from holdfast.net.guarded import Answer, Guarded, NotReached
from holdfast.store.statements import sql

_LEASE = sql("lease_webhooks")
_ADVANCE = sql("advance_webhook")
_RELEASE = sql("release_webhook")
_FAIL = sql("fail_webhook")
_PLACES = sql("event_places")

LEASE_SECONDS = 60.0
HOLD_SECONDS_MAX = 20.0
"""A holder lets go after a while, so that every webhook gets its turn with every process."""
WEBHOOKS_MAX = 20
PAGE = 100
ACTOR = "holdfast:deliver"


@dataclass(slots=True, kw_only=True)
class Delivered:
    """What one pass did. `has_more`: some webhook was let go before it reached the end."""

    webhooks: int = 0
    events: int = 0
    failed: int = 0
    has_more: bool = False


async def deliver_webhooks_once(engine: Engine, guarded: Guarded) -> Delivered:
    """One pass over the webhooks that are due."""
    done = Delivered()
    rows = await engine.database.fetch(_LEASE, WEBHOOKS_MAX, LEASE_SECONDS)
    done.webhooks = len(rows)
    async with asyncio.TaskGroup() as group:
        for row in rows:
            group.create_task(_Delivery(engine, guarded, row, done).run())
    return done


class _Delivery:
    """One webhook in our hands."""

    def __init__(self, engine: Engine, guarded: Guarded, row: Any, done: Delivered) -> None:
        self._engine = engine
        self._guarded = guarded
        self._row = row
        self._done = done
        self._began = time.monotonic()
        self._secrets = [row["secret"], *([row["old_secret"]] if row["old_secret"] else [])]
        self._filter = Filter(kinds=row["kinds"], queues=row["queues"], actions=row["actions"])

    async def run(self) -> None:
        """Send what is new until there is no more, or somebody else should have a turn."""
        cursor = self._row["cursor"]
        while True:
            page = await told_after(self._engine.database, self._row["tenant_id"], cursor, limit=PAGE)
            for event, place in zip(page.events, await self._places(page.events), strict=True):
                if not self._filter.wants(event.kind, *place):
                    continue
                if not await self._send(event, place):
                    return
                if time.monotonic() - self._began > HOLD_SECONDS_MAX:
                    self._done.has_more = True
                    await self._release(0.0)
                    return
            if page.cursor != cursor and not await self._advance(page.cursor, 0):
                return
            cursor = page.cursor
            if page.is_all:
                await self._release(self._engine.settings.webhooks.look_seconds)
                return

    async def _send(self, event: Event, place: tuple[str | None, str | None]) -> bool:
        """Whether the event was taken and is ours to count."""
        failure, status, retry_after = "", None, None
        try:
            answer = await self._ask(event, place)
            if answer.is_success:
                if not await self._advance(event.cursor, 1):
                    return False
                self._done.events += 1
                return True
            failure, status, retry_after = answer.sentence, answer.status, answer.retry_after
        except NotReached as error:
            failure = str(error)
        except Invalid as error:
            failure = error.detail
        await self._fail(failure, status, retry_after)
        return False

    async def _ask(self, event: Event, place: tuple[str | None, str | None]) -> Answer:
        data = {
            "task_id": event.task_id or None,
            "attempt": event.attempt or None,
            "queue": place[0],
            "action": place[1],
            "detail": event.detail,
            "cursor": event.cursor,
        }
        body = body_of(event.kind, event.at, data)
        sent_at = int(self._row["at"] + time.monotonic() - self._began)
        headers = webhooks.signed(delivery_id(self._row["installation"], event.cursor), sent_at, body, self._secrets)
        return await self._guarded.ask(
            "POST",
            self._row["url"],
            headers={"content-type": "application/json", **headers},
            body=body,
            seconds_max=self._engine.settings.webhooks.timeout_seconds,
        )

    async def _places(self, events: Sequence[Event]) -> list[tuple[str | None, str | None]]:
        """The queue and action of each event; of one without a task, what its detail names."""
        task_ids = sorted({int(event.task_id) for event in events if event.task_id})
        rows = await self._engine.database.fetch(_PLACES, task_ids) if task_ids else []
        known = {str(row["task_id"]): (row["queue"], row["action"]) for row in rows}
        return [
            known.get(event.task_id, (None, None)) if event.task_id else _named(event.detail or {}) for event in events
        ]

    async def _advance(self, cursor: str, delivered: int) -> bool:
        held = (self._row["webhook_id"], self._row["lease_token"])
        return bool(await self._engine.database.fetch(_ADVANCE, *held, cursor, delivered, LEASE_SECONDS))

    async def _release(self, seconds: float) -> None:
        await self._engine.database.fetch(_RELEASE, self._row["webhook_id"], self._row["lease_token"], seconds)

    async def _fail(self, sentence: str, status: int | None, retry_after: str | None) -> None:
        self._done.failed += 1
        later = after_failure(
            self._row["failures"] + 1,
            sentence,
            failures_max=self._engine.settings.webhooks.failures_max,
            jitter=random.random(),
            status=status,
            retry_after=retry_after,
        )
        held = (self._row["webhook_id"], self._row["lease_token"])
        async with self._engine.database.transaction() as session:
            is_ours = await session.fetch(_FAIL, *held, sentence, later.seconds, later.pause_reason, ACTOR)
            if is_ours and later.pause_reason is not None:
                change = Change(verb="webhook.pause", subject_kind="webhook", subject_id=self._row["name"])
                reason = later.pause_reason[:1000]
                await audit(session, self._row["tenant_id"], [change], actor=ACTOR, reason=reason)


def _named(detail: dict[str, Any]) -> tuple[str | None, str | None]:
    queue, action = detail.get("queue"), detail.get("action")
    return (queue if isinstance(queue, str) else None, action if isinstance(action, str) else None)
