"""Webhook rules: which events a webhook wants, what is sent, and what follows a failed delivery."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.tasks.backoff import backoff_seconds
from holdfast.core.tasks.retry_after import requested_delay

KINDS = frozenset(
    f"{noun}.{verb}"
    for noun, verbs in {
        "breaker": "closed half_open opened reset",
        "campaign": "aborted approved awaiting_approval awaiting_version canary completed ramp resumed started stopped",
        "dataset": "committed cut_over rolled_back",
        "dead_letter": "exhausted ignored opened resolved retry_requested",
        "effect": "compensated",
        "execution": "canceled canceling completed failed paused redriven resumed started",
        "queue": "limited paused resumed",
        "quota": "lifted set",
        "schedule": "changed created deleted fired missed paused resumed skipped waiting",
        "task": "canceled completed failed launch_failed lost queued released reserved retrying revived skipped "
        "started upstream_failed",
    }.items()
    for verb in verbs.split()
) | {"stateful_dead_letter_retry_requeued"}
"""The event kinds that a filter can name; `task.*` selects every kind of a noun."""

TEST_KIND = "webhook.test"
FILTERS_MAX = 100
BACKOFF_SECONDS_FIRST, BACKOFF_SECONDS_MAX = 1.0, 300.0
ASKED_SECONDS_MAX = 3600.0
GONE = 410


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """The events that a webhook wants; None selects everything. Kinds may end in `.*`."""

    kinds: Sequence[str] | None = None
    queues: Sequence[str] | None = None
    actions: Sequence[str] | None = None

    def wants(self, kind: str, queue: str | None, action: str | None) -> bool:
        if self.kinds is not None and kind not in self.kinds and f"{kind.partition('.')[0]}.*" not in self.kinds:
            return False
        if self.queues is not None and queue not in self.queues:
            return False
        return self.actions is None or action in self.actions


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDelivery:
    """Try again after a pause; with `pause_reason`, pause the webhook instead."""

    seconds: float
    pause_reason: str | None = None


def after_failure(
    failures: int,
    sentence: str,
    *,
    failures_max: int,
    jitter: float,
    status: int | None = None,
    retry_after: str | None = None,
) -> RetryDelivery:
    """Decide what follows a failed delivery; `failures` counts those of this event, including this one."""
    if status == GONE:
        return RetryDelivery(seconds=0.0, pause_reason="The receiver answered 410: it is gone for good.")
    if failures >= failures_max:
        return RetryDelivery(
            seconds=0.0, pause_reason=f"{failures} consecutive deliveries failed; the last one: {sentence}."
        )
    pause = backoff_seconds(
        retry_count=failures - 1,
        base=BACKOFF_SECONDS_FIRST,
        multiplier=2.0,
        maximum=BACKOFF_SECONDS_MAX,
        jitter_factor=0.2,
        jitter=jitter,
    )
    requested = requested_delay(retry_after, sent_at=None) if retry_after else None
    if requested is not None:
        pause = max(pause, min(requested, timedelta(seconds=ASKED_SECONDS_MAX)).total_seconds())
    return RetryDelivery(seconds=pause)


def delivery_id(installation: str, cursor: str) -> str:
    """Return an id that is the same whenever one event is sent, and different in another database."""
    return f"evt_{installation}_{cursor.replace(':', '_')}"


def body_of(kind: str, at: datetime, data: Mapping[str, Any]) -> bytes:
    """Return the request body `{"type", "timestamp", "data"}`, the same bytes for the same event."""
    content = {"type": kind, "timestamp": at.isoformat(), "data": data}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
