"""Which leases of ended attempts a beat has to keep: those whose reports wait for longer than a beat.

As long as all is well there are none. Used in the heart's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engine.leases import Report

KEPT_MAX = 10_000
"""How many one beat keeps; the others have their turn at the next."""
KEPT_SECONDS_MAX = 3600.0
"""How long one is kept. What could not be settled for so long never will be here, and somebody else has to have it."""


class _UnsettledLease(msgspec.Struct):
    since: float
    renewed_at: float


class UnsettledLeases:
    """`ended()` gives what ended and is not settled, in the order in which attempts of one task ended."""

    def __init__(self, ended: Callable[[], Sequence[Report]]) -> None:
        self._ended = ended
        self._kept: dict[int, _UnsettledLease] = {}

    def due(self, now: float, *, young_seconds: float) -> dict[int, Any]:
        """The leases to renew now (task id → token), and no longer those that were settled since."""
        before, self._kept = self._kept, {}
        due: dict[int, Any] = {}
        for report in self._ended():
            if now - report.leased_at < young_seconds:
                continue
            kept = self._kept[report.task_id] = before.get(report.task_id) or _UnsettledLease(now, report.leased_at)
            is_due = now - kept.renewed_at >= young_seconds and now - kept.since < KEPT_SECONDS_MAX
            if is_due and len(due) < KEPT_MAX:
                due[report.task_id] = report.lease_token
        return due

    def kept(self, task_ids: Iterable[int], now: float) -> None:
        """These were renewed at this time."""
        for task_id in task_ids:
            if (kept := self._kept.get(task_id)) is not None:
                kept.renewed_at = now
