"""Worker liveness: how long a worker may be silent before it counts as lost.

The same rule serves the pass that marks workers as lost, `why`, the version gate of a campaign, and `doctor`.
"""

from __future__ import annotations

SILENT_SECONDS_MIN = 30.0


def silent_seconds(lease_seconds: float) -> float:
    """Return three leases, each longer than three heartbeat intervals, but at least half a minute."""
    return max(SILENT_SECONDS_MIN, 3 * lease_seconds)
