"""Options for retry quotas: `--retries 100/1m --retry-share 20%`, for one queue or all of them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.cli.ui.output import Column, emit_rows
from holdfast.cli.ui.shell import Shell
from holdfast.core.values.duration import human

if TYPE_CHECKING:
    from holdfast.engine.limits.quotas import QuotaView

ALL_QUEUES = "*"
NONE = "none"


def said(text: str | None) -> Any:
    """Return an option's value for the operation: an omitted one is unset, `none` removes the limit."""
    from msgspec import UNSET

    if text is None:
        return UNSET
    return None if text == NONE else text


def emit_quotas(shell: Shell, views: list[QuotaView]) -> None:
    columns: list[Column[QuotaView]] = [
        Column(title="OF", text=lambda row: f"{row.scope} {row.name}"),
        Column(title="RETRIES", text=lambda row: row.text, shrinks=True),
        Column(title="USED", text=lambda row: f"{row.used}/{row.allowed}", right=True),
        Column(title="NEXT SLOT", text=lambda row: human(row.next_slot_seconds), right=True),
        Column(title="SET BY", text=lambda row: f"{row.actor}: {row.reason or 'no reason given'}", stretch=True),
    ]
    emit_rows(shell, views, columns, empty="No retry quota is set.")
