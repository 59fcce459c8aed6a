"""Commands on webhooks: add, list, pause, resume, rotate, test and remove them, with actor and reason.

A secret is returned once, to the caller that created it; a reporter has none, because nothing is signed for it. The
egress rules that are checked when a webhook is saved are checked again at every connection.
"""

from __future__ import annotations

import secrets as randomness
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from holdfast import webhooks
from holdfast.codec.reporters import Reported, allowed_reference, is_reporter
from holdfast.core.values import bounds
from holdfast.core.webhooks import FILTERS_MAX, KINDS, TEST_KIND, body_of
from holdfast.engine.audit import Change, audit
from holdfast.engine.engine import Engine
from holdfast.engine.queries.events import event_tail
from holdfast.engine.webhooks.reporters import Reporters
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Answer, Guarded, NotReached, Resolver, check_url, resolve
from holdfast.store.database import Database, Session
from holdfast.store.sql.webhooks import webhooks as webhooks_sql

WEBHOOKS_MAX = 100
"""Per tenant; concurrent additions may exceed it."""
NO_SECRET = ""
"""Stored for a reporter instead of a secret."""
GRACE_SECONDS = 24 * 3600.0
GRACE_SECONDS_MAX = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookView:
    """One webhook, for display. `kinds`, `queues`, `actions` None: all. `retry_at` is set while a delivery waits."""

    name: str
    url: str
    state: str
    kinds: list[str] | None
    queues: list[str] | None
    actions: list[str] | None
    cursor: str
    created_at: datetime
    created_by: str
    delivered: int
    delivered_at: datetime | None
    failures: int
    failed_at: datetime | None
    last_error: str | None
    retry_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    old_secret_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSecret:
    """A name and a secret that is not shown again; a reporter has none."""

    name: str
    secret: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The result of a test event; a reporter has no `status`."""

    name: str
    is_delivered: bool
    status: int | None
    seconds: float | None
    sentence: str


async def add_webhook(
    engine: Engine,
    tenant_id: int,
    name: str,
    url: str,
    *,
    kinds: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    actor: str,
    reason: str = "",
    resolver: Resolver = resolve,
) -> NewSecret:
    """Deliver events from now on to a URL or reporter; `Invalid` for one not allowed, `Conflict` for a taken name."""
    _valid_name(name)
    wanted = {
        "kinds": None if not kinds else valid_kinds(_few(kinds)),
        "queues": None if not queues else [bounds.valid_queue(queue) for queue in _few(queues)],
        "actions": None if not actions else [bounds.valid_action(action) for action in _few(actions)],
    }
    if is_reporter(url):
        allowed_reference(url, engine.settings)
    else:
        await check_url(url, EgressRules.of(engine.settings.egress), resolver=resolver)
    secret = NO_SECRET if is_reporter(url) else webhooks.new_secret()
    cursor = await event_tail(engine.database)
    async with engine.database.transaction() as session:
        if await webhooks_sql.count_webhooks(session, tenant_id) >= WEBHOOKS_MAX:
            raise Conflict(
                f"There are {WEBHOOKS_MAX} webhooks already, as many as a tenant may have.",
                code="too_many_webhooks",
                advice="Remove one, or let one receiver pass events on.",
            )
        if not await webhooks_sql.add_webhook(
            session,
            tenant_id,
            name,
            url,
            wanted["kinds"],
            wanted["queues"],
            wanted["actions"],
            secret,
            cursor,
            actor,
        ):
            raise Conflict(
                f"There is a webhook {name!r} already.",
                code="webhook_exists",
                advice="Take another name, or remove that one.",
            )
        await _record(session, tenant_id, "webhook.add", name, after={"url": url, **wanted}, actor=actor, reason=reason)
    return NewSecret(name=name, secret=secret or None)


async def list_webhooks(source: Database | Session, tenant_id: int, *, name: str | None = None) -> list[WebhookView]:
    """Return every webhook (or one), by name."""
    return [_view(row) for row in await webhooks_sql.list_webhooks(source, tenant_id, name)]


async def show_webhook(database: Database, tenant_id: int, name: str) -> WebhookView:
    """Return one webhook; raise `NotFound` if it does not exist."""
    found = await list_webhooks(database, tenant_id, name=name)
    if not found:
        raise await _missing(database, tenant_id, name)
    return found[0]


async def remove_webhook(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str = "") -> None:
    """Stop deliveries to a webhook and delete it."""
    async with engine.database.transaction() as session:
        row = await _locked(session, tenant_id, name)
        await webhooks_sql.remove_webhook(session, tenant_id, name)
        await _record(session, tenant_id, "webhook.remove", name, before={"url": row.url}, actor=actor, reason=reason)


async def rotate_webhook(
    engine: Engine, tenant_id: int, name: str, *, grace_seconds: float = GRACE_SECONDS, actor: str, reason: str = ""
) -> NewSecret:
    """Create another secret; during the grace period both sign, so that receivers can switch in their own time."""
    if not 0 <= grace_seconds <= GRACE_SECONDS_MAX:
        raise Invalid("The grace must be from 0 to 30 days.", code="invalid_grace")
    secret = webhooks.new_secret()
    async with engine.database.transaction() as session:
        row = await _locked(session, tenant_id, name)
        if is_reporter(row.url):
            raise Invalid(
                f"{name} is a reporter: nothing is signed for it, so it has no secret.", code="reporter_has_no_secret"
            )
        await webhooks_sql.rotate_webhook(session, tenant_id, name, secret, grace_seconds)
        after = {"grace_seconds": grace_seconds}
        await _record(session, tenant_id, "webhook.rotate", name, after=after, actor=actor, reason=reason)
    return NewSecret(name=name, secret=secret)


async def pause_webhook(engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str = "") -> bool:
    """Stop delivering; events stay available to it as long as history does. Return False if it was already paused."""
    async with engine.database.transaction() as session:
        await _locked(session, tenant_id, name)
        is_changed = bool(await webhooks_sql.pause_webhook(session, tenant_id, name, actor, reason))
        if is_changed:
            change = {"before": {"paused": False}, "after": {"paused": True}}
            await _record(session, tenant_id, "webhook.pause", name, **change, actor=actor, reason=reason)
    return is_changed


async def resume_webhook(
    engine: Engine, tenant_id: int, name: str, *, from_now: bool = False, actor: str, reason: str = ""
) -> bool:
    """Deliver again, from the stored position or from now on. Return False if it was not paused."""
    cursor = await event_tail(engine.database) if from_now else None
    async with engine.database.transaction() as session:
        row = await _locked(session, tenant_id, name)
        is_changed = bool(await webhooks_sql.resume_webhook(session, tenant_id, name, cursor))
        if is_changed:
            before = {"paused_reason": row.paused_reason, "cursor": row.cursor}
            after = {"cursor": cursor or row.cursor}
            await _record(
                session, tenant_id, "webhook.resume", name, before=before, after=after, actor=actor, reason=reason
            )
    return is_changed


async def try_webhook(
    engine: Engine, tenant_id: int, name: str, *, actor: str, reason: str = "", resolver: Resolver = resolve
) -> Tested:
    """Send a test event now, whether the webhook is paused or not. Only the audit record of the test is stored."""
    async with engine.database.transaction() as session:
        row = await _locked(session, tenant_id, name)
        await _record(session, tenant_id, "webhook.test", name, actor=actor, reason=reason)
    detail = {"webhook": name, "actor": actor}
    began = time.monotonic()
    try:
        if is_reporter(row.url):
            await _try_reporter(engine, row, detail)
            seconds = time.monotonic() - began
            return Tested(name=name, is_delivered=True, status=None, seconds=seconds, sentence="it took the event")
        answer = await _try_url(engine, row, detail, resolver)
    except NotReached as error:
        seconds = time.monotonic() - began
        return Tested(name=name, is_delivered=False, status=None, seconds=seconds, sentence=str(error))
    return Tested(
        name=name,
        is_delivered=answer.is_success,
        status=answer.status,
        seconds=answer.seconds,
        sentence=answer.sentence,
    )


async def _try_url(
    engine: Engine, row: webhooks_sql.LockWebhookRow, detail: dict[str, str], resolver: Resolver
) -> Answer:
    body = body_of(TEST_KIND, datetime.fromtimestamp(row.at, UTC), detail)
    secrets = [row.secret, *([row.old_secret] if row.old_secret else [])]
    headers = webhooks.signed(_test_id(), int(row.at), body, secrets)
    guarded = Guarded(EgressRules.of(engine.settings.egress), resolver=resolver)
    try:
        return await guarded.ask(
            "POST",
            row.url,
            headers={"content-type": "application/json", **headers},
            body=body,
            seconds_max=engine.settings.webhooks.timeout_seconds,
        )
    finally:
        await guarded.close()


async def _try_reporter(engine: Engine, row: webhooks_sql.LockWebhookRow, detail: dict[str, str]) -> None:
    """Test with a new instance of the reporter: whether its factory works here is part of the test."""
    reporters = Reporters(engine.settings)
    event = Reported(
        kind=TEST_KIND,
        at=datetime.fromtimestamp(row.at, UTC),
        delivery_id=_test_id(),
        task_id=None,
        attempt=None,
        queue=None,
        action=None,
        detail=dict(detail),
        cursor=row.cursor,
        tenant=row.tenant,
    )
    try:
        await reporters.report(row.url, event)
    finally:
        await reporters.close()


def _test_id() -> str:
    return f"test_{randomness.token_hex(8)}"


async def _locked(session: Session, tenant_id: int, name: str) -> webhooks_sql.LockWebhookRow:
    row = await webhooks_sql.lock_webhook(session, tenant_id, name)
    if row is None:
        raise await _missing(session, tenant_id, name)
    return row


async def _missing(source: Database | Session, tenant_id: int, name: str) -> NotFound:
    names = [view.name for view in await list_webhooks(source, tenant_id)]
    near = get_close_matches(name, names, n=1)
    advice = f"Did you mean {near[0]}?" if near else "See `holdfast webhook list`."
    return NotFound(f"There is no webhook {name[:80]!r}.", code="webhook_not_found", advice=advice)


async def _record(
    session: Session,
    tenant_id: int,
    verb: str,
    name: str,
    *,
    before: Any = None,
    after: Any = None,
    actor: str,
    reason: str,
) -> None:
    change = Change(verb=verb, subject_kind="webhook", subject_id=name, before=before, after=after)
    await audit(session, tenant_id, [change], actor=actor, reason=reason)


def _view(row: webhooks_sql.ListWebhooksRow) -> WebhookView:
    state = "paused" if row.paused_at is not None else "retrying" if row.failures else "active"
    return WebhookView(state=state, **row._asdict())


def _few(values: Sequence[str]) -> Sequence[str]:
    if len(values) > FILTERS_MAX:
        raise Invalid(f"At most {FILTERS_MAX} values of one filter.", code="invalid_filter")
    return list(dict.fromkeys(values))


def _valid_name(name: str) -> None:
    """Check a name; the rules of queue names apply."""
    bounds.valid_queue(name)


def valid_kinds(kinds: Iterable[str]) -> list[str]:
    """Return valid kinds of events, including `noun.*`; raise `Invalid` for an unknown one."""
    known = KINDS | {f"{kind.partition('.')[0]}.*" for kind in KINDS if "." in kind}
    accepted = list(dict.fromkeys(kinds))
    for kind in accepted:
        if kind not in known:
            near = get_close_matches(kind, sorted(known), n=1)
            raise Invalid(
                f"There is no event {kind[:80]!r}.",
                code="invalid_event_kind",
                advice=f"Did you mean {near[0]}?" if near else "Try task.*, task.failed or execution.completed.",
            )
    return accepted
