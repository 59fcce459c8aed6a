"""Retry quotas as people type them: `--retries 100/1m --retry-share 20%`, for one queue or all of them together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.cli.shell import Shell, actor
from holdfast.cli.show import Column, emit_rows
from holdfast.core.circuit import valid_share
from holdfast.core.duration import human, seconds_of
from holdfast.core.quota import Quota
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.dispatcher.engine import Engine
    from holdfast.dispatcher.quotas import QuotaView

ALL_QUEUES = "*"
NONE = "none"


async def limit_all_retries(shell: Shell, retries: str | None, share: str | None, reason: str) -> list[QuotaView]:
    """Set or lift the quota of all queues together; answers every quota there is."""
    from holdfast.dispatcher.quotas import list_quotas
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        await limit_retries(client.engine, None, retries, share, reason)
        return await list_quotas(client.engine.database, DEFAULT_TENANT_ID)


async def limit_retries(engine: Engine, queue: str | None, retries: str | None, share: str | None, reason: str) -> None:
    """Change the quota of a queue (None: of all together); what is not named stays."""
    from holdfast.dispatcher.quotas import list_quotas, set_quota
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    scope = "tenant" if queue is None else "queue"
    views = await list_quotas(engine.database, DEFAULT_TENANT_ID)
    known = next((view for view in views if view.scope == scope and queue in (None, view.name)), None)
    now = (
        None if known is None else Quota(retries=known.retries, share=known.share, window_seconds=known.window_seconds)
    )
    changed = changed_quota(now, retries, share)
    await set_quota(engine, DEFAULT_TENANT_ID, changed, queue=queue, actor=actor(), reason=reason)


def changed_quota(now: Quota | None, retries: str | None, share: str | None) -> Quota | None:
    """The quota with what was typed; None when nothing is left of it."""
    count, window = (None, 60.0) if now is None else (now.retries, now.window_seconds)
    if retries == NONE:
        count = None
    elif retries is not None:
        count, window = _count_and_window(retries, window)
    part = None if now is None else now.share
    if share is not None:
        part = None if share == NONE else valid_share("quota", share)
    if count is None and part is None:
        return None
    return replace(now or Quota(), retries=count, share=part, window_seconds=window)


def _count_and_window(text: str, window: float) -> tuple[int, float]:
    count, slash, per = text.partition("/")
    if not count.strip().isdigit():
        raise Invalid(
            f"--retries must be a number, a number per time, or none, not {text!r}.",
            code="invalid_limit",
            advice="Write for example 100/1m.",
        )
    return int(count), seconds_of(f"1{per}" if per.strip() in ("s", "m", "h", "d") else per) if slash else window


def emit_quotas(shell: Shell, views: list[QuotaView]) -> None:
    columns: list[Column[QuotaView]] = [
        Column(title="OF", text=lambda row: f"{row.scope} {row.name}"),
        Column(title="RETRIES", text=lambda row: row.text),
        Column(title="USED", text=lambda row: f"{row.used}/{row.allowed}", right=True),
        Column(title="NEXT SLOT", text=lambda row: human(row.next_slot_seconds), right=True),
        Column(title="SET BY", text=lambda row: f"{row.actor}: {row.reason or 'no reason given'}", stretch=True),
    ]
    emit_rows(shell, views, columns, empty="No retry quota is set.")
