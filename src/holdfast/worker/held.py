"""What a worker process holds at this moment: one entry per claimed attempt, shared by its loop and its heart.

Entries are added and removed by the event loop's thread only; the heart reads a snapshot and moves deadlines. All times
are this process's monotonic clock, which other processes of the machine share.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from holdfast.core.retry import RetryPolicy
from holdfast.dispatcher.leases import Claimed

FOREVER = float("inf")


class Held:
    """One claimed attempt. `fence_at`: stop the work by then; `expires_at`: be dead by then; `deadline_at`: overrun."""

    __slots__ = (
        "claimed",
        "deadline_at",
        "expires_at",
        "fence_at",
        "is_started",
        "policy",
        "renewed_at",
        "stop",
        "task",
        "verdict",
    )

    def __init__(self, claimed: Claimed, policy: RetryPolicy, *, sent_at: float, lease_seconds: float) -> None:
        self.claimed = claimed
        self.policy = policy
        self.is_started = False
        self.task: asyncio.Task[None] | None = None
        self.stop: threading.Event | None = None
        self.verdict: str | None = None
        self.deadline_at = FOREVER
        self.renew(sent_at, lease_seconds)

    def renew(self, sent_at: float, lease_seconds: float) -> None:
        """The lease counts from before the request left, so this clock is always ahead of the database's."""
        self.renewed_at = sent_at
        self.fence_at = sent_at + lease_seconds * 0.8
        self.expires_at = sent_at + lease_seconds * 0.95


def kill_at(held: Iterable[Held]) -> float:
    """When this process must not be running any more, if nothing changes until then."""
    return min((min(entry.expires_at, entry.deadline_at) for entry in held), default=FOREVER)
