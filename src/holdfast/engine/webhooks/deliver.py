"""Deliver events to webhooks and reporters, in order, at least once each, with one lease holder per webhook.

A pass leases the due webhooks that have no holder. Webhooks are delivered concurrently, so a slow receiver delays no
other. The cursor moves after every accepted event, under the lease's token: a process that dies repeats at most one
event, under the same id, and one that lost its lease moves nothing. An event that a receiver does not accept blocks the
events after it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass

from holdfast import webhooks
from holdfast.codec.reporters import Reported, is_reporter
from holdfast.core.webhooks import EventFilter, after_failure, delivery_id
from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.engine.queries.event_subjects import EventContext, contexts_of
from holdfast.engine.queries.events import Event, events_after
from holdfast.engine.webhooks.reporters import Reporters
from holdfast.errors import Invalid
from holdfast.net.guarded_request import Answer, Guarded, NotReached, is_possible
from holdfast.store.database import ANY_DB_ERROR
from holdfast.store.sql.webhooks import webhooks as webhooks_sql

log = logging.getLogger("holdfast.webhooks")

LEASE_SECONDS = 60.0
HOLD_SECONDS_MAX = 20.0
"""How long a process delivers to one webhook before it releases the lease, so that every webhook gets its turn."""
REFUSED_SECONDS = 10.0
"""About how long a webhook that this process may not deliver to is left to others."""
WEBHOOKS_MAX = 40
TENANT_WEBHOOKS_MAX = 20
"""Deliveries per tenant at once, so that slow receivers leave capacity for other tenants."""
TURNS = (1, 2, 4, 8, 16)
"""How many webhooks per tenant are leased in each round."""
PAGE = 100
ACTOR = "holdfast:deliver"


@dataclass(slots=True, kw_only=True)
class DeliveryResult:
    """Totals so far."""

    webhooks: int = 0
    events: int = 0
    failed: int = 0


class Deliveries:
    """The deliveries that run in this process."""

    def __init__(self, engine: Engine, guarded: Guarded) -> None:
        self.done = DeliveryResult()
        self._engine = engine
        self._guarded = guarded
        self._reporters = Reporters(engine.settings)
        self._asks = is_possible()
        """Without the HTTP client only reporters are delivered to."""
        self._running: dict[asyncio.Task[None], int] = {}
        """Running deliveries, and the tenant of each."""

    async def begin(self) -> None:
        """Lease due webhooks as far as there is capacity and start their deliveries: one per tenant, then two …"""
        for share in TURNS:
            if not (room := WEBHOOKS_MAX - len(self._running)):
                return
            held = Counter(self._running.values())
            bounds = (share, list(held.keys()), list(held.values()), TENANT_WEBHOOKS_MAX, self._asks)
            rows = await webhooks_sql.lease_webhooks(self._engine.database, room, LEASE_SECONDS, *bounds)
            for row in rows:
                self.done.webhooks += 1
                task = asyncio.create_task(self._deliver(row), name=f"holdfast-webhook-{row.webhook_id}")
                self._running[task] = row.tenant_id
                task.add_done_callback(self._running.pop)
            if not rows:
                return

    async def _deliver(self, row: webhooks_sql.LeaseWebhooksRow) -> None:
        """Deliver to one webhook. If the database fails, the next lease holder continues."""
        outage, part = self._engine.database.outage, f"webhook {row.name}"
        try:
            await _Delivery(self._engine, self._guarded, self._reporters, row, self.done).run()
            outage.answered(part)
        except ANY_DB_ERROR as error:
            outage.failed(part, error)

    async def settled(self) -> DeliveryResult:
        """Wait until no delivery is running."""
        if self._running:
            await asyncio.gather(*self._running)
        return self.done

    async def close(self) -> None:
        """Stop at once; the next lease holder repeats what was interrupted."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._reporters.close()


async def deliver_webhooks_once(engine: Engine, guarded: Guarded) -> DeliveryResult:
    """Deliver to the webhooks that are due, and wait for the end."""
    deliveries = Deliveries(engine, guarded)
    try:
        await deliveries.begin()
        return await deliveries.settled()
    finally:
        await deliveries.close()


class _Delivery:
    """The delivery to one leased webhook."""

    def __init__(
        self,
        engine: Engine,
        guarded: Guarded,
        reporters: Reporters,
        row: webhooks_sql.LeaseWebhooksRow,
        done: DeliveryResult,
    ) -> None:
        self._engine = engine
        self._guarded = guarded
        self._reporters = reporters
        self._row = row
        self._failures = row.failures
        """Consecutive failures; an event accepted since the lease began resets them."""
        self._done = done
        self._began = time.monotonic()
        self._secrets = [row.secret, *([row.old_secret] if row.old_secret else [])]
        self._filter = EventFilter(kinds=row.kinds, queues=row.queues, actions=row.actions)

    async def run(self) -> None:
        """Send new events until there are no more, or the time of this lease holder is up."""
        cursor = self._row.cursor
        while True:
            page = await events_after(self._engine.database, self._row.tenant_id, cursor, limit=PAGE)
            for event, place in zip(page.events, await contexts_of(self._engine.database, page.events), strict=True):
                if not self._filter.wants(event.kind, place.queue, place.action):
                    continue
                if not await self._send(event, place):
                    return
                if self._is_late():
                    await self._release(event.cursor, 0.0)
                    return
            cursor = page.cursor
            if page.is_all or self._is_late():
                await self._release(cursor, self._engine.settings.webhooks.look_seconds if page.is_all else 0.0)
                return
            if not await self._advance(cursor, 0):
                return

    def _is_late(self) -> bool:
        return time.monotonic() - self._began > HOLD_SECONDS_MAX

    async def _send(self, event: Event, place: EventContext) -> bool:
        """Send one event. Return whether it was accepted and the lease is still ours."""
        failure, status, retry_after = "", None, None
        try:
            answer = await self._hand_over(self._reported(event, place))
            if answer is None or answer.is_success:
                self._failures = 0
                if not await self._advance(event.cursor, 1):
                    return False
                self._done.events += 1
                return True
            failure, status, retry_after = answer.sentence, answer.status, answer.retry_after
        except NotReached as error:
            failure = str(error)
        except Invalid as error:
            await self._refuse(error.detail)
            return False
        await self._fail(failure, status, retry_after)
        return False

    def _reported(self, event: Event, place: EventContext) -> Reported:
        return Reported(
            kind=event.kind,
            at=event.at,
            delivery_id=delivery_id(self._row.installation, event.cursor),
            task_id=event.task_id or None,
            attempt=event.attempt or None,
            queue=place.queue,
            action=place.action,
            detail=event.detail,
            cursor=event.cursor,
            tenant=self._row.tenant,
        )

    async def _hand_over(self, event: Reported) -> Answer | None:
        """Send the event and return the receiver's response; None for a reporter that accepted it."""
        if is_reporter(self._row.url):
            await self._reporters.report(self._row.url, event)
            return None
        body = event.body
        sent_at = int(self._row.at + time.monotonic() - self._began)
        headers = webhooks.signed(event.delivery_id, sent_at, body, self._secrets)
        return await self._guarded.ask(
            "POST",
            self._row.url,
            headers={"content-type": "application/json", **headers},
            body=body,
            seconds_max=self._engine.settings.webhooks.timeout_seconds,
        )

    async def _advance(self, cursor: str, delivered: int) -> bool:
        held = (self._row.webhook_id, self._row.lease_token)
        return bool(await webhooks_sql.advance_webhook(self._engine.database, *held, cursor, delivered, LEASE_SECONDS))

    async def _release(self, cursor: str, seconds: float) -> None:
        held = (self._row.webhook_id, self._row.lease_token)
        await webhooks_sql.release_webhook(self._engine.database, *held, seconds, cursor)

    async def _refuse(self, sentence: str) -> None:
        """Record that this process's own rules forbid the delivery: not the receiver's fault, and other processes may
        differ."""
        self._done.failed += 1
        log.warning("webhook %s is not delivered by this process: %s", self._row.name, sentence)
        seconds = REFUSED_SECONDS * random.uniform(0.5, 1.5)
        await webhooks_sql.refuse_webhook(
            self._engine.database, self._row.webhook_id, self._row.lease_token, sentence, seconds
        )

    async def _fail(self, sentence: str, status: int | None, retry_after: str | None) -> None:
        self._done.failed += 1
        later = after_failure(
            self._failures + 1,
            sentence,
            failures_max=self._engine.settings.webhooks.failures_max,
            jitter=random.random(),
            status=status,
            retry_after=retry_after,
        )
        held = (self._row.webhook_id, self._row.lease_token)
        async with self._engine.database.transaction() as session:
            is_ours = await webhooks_sql.fail_webhook(
                session, *held, sentence, later.seconds, later.pause_reason, ACTOR
            )
            if is_ours and later.pause_reason is not None:
                change = Change(verb="webhook.pause", subject_kind="webhook", subject_id=self._row.name)
                reason = later.pause_reason[:1000]
                await audit(session, self._row.tenant_id, [change], actor=ACTOR, reason=reason)
