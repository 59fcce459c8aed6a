"""Workers: how long one may say nothing before nobody counts on it.

The same rule for whoever asks: the pass that shows workers as lost, `why`, the gate of a campaign and `doctor`.
"""

from __future__ import annotations

SILENT_SECONDS_MIN = 30.0


def silent_seconds(lease_seconds: float) -> float:
    """Three leases, each of which outlives three heartbeats; half a minute where leases are short."""
    return max(SILENT_SECONDS_MIN, 3 * lease_seconds)
