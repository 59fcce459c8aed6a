"""Which leases of ended attempts a heartbeat must renew: those whose reports wait for longer than a heartbeat.

Normally there are none. Used only in the heartbeat thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engine.leases import Report

KEPT_MAX = 10_000
"""How many leases one heartbeat renews; the others follow with the next."""
KEPT_SECONDS_MAX = 3600.0
"""How long one lease is renewed. A report that could not be settled for so long never will be here, so the task must
become available to other workers.
"""


class _UnsettledLease(msgspec.Struct):
    since: float
    renewed_at: float


class UnsettledLeases:
    """Leases of unsettled reports. `ended()` returns the reports in the order in which attempts of one task ended."""

    def __init__(self, ended: Callable[[], Sequence[Report]]) -> None:
        self._ended = ended
        self._kept: dict[int, _UnsettledLease] = {}

    def due(self, now: float, *, young_seconds: float) -> dict[int, Any]:
        """Return the leases to renew now (task id → token), and forget those settled since."""
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
        """Record that these leases were renewed at this time."""
        for task_id in task_ids:
            if (kept := self._kept.get(task_id)) is not None:
                kept.renewed_at = now
