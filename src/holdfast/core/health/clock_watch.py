"""Detection of jumps of the database clock, by comparison with the monotonic clock of this process.

A database clock that is set forward makes every lease look expired at once, although all of them are still valid. A
process that detects a jump waits one lease before it ends anything because of the time. By then every worker has
learned that its lease is over and has stopped its work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

JUMP_SECONDS_MIN = 1.0
JUMP_SHARE = 0.25
"""A jump is at least one second and at least this share of a lease; a smaller one expires no lease that is renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWatch:
    """What one process knows about the database clock; all times in seconds, each by the named clock."""

    database_at: float | None = None
    """The database clock at the last reading."""
    own_at: float = 0.0
    """The monotonic clock of this process before that reading."""
    waits_until: float = float("-inf")
    """By the monotonic clock: until then nothing is ended because of the time."""

    def read(self, database_at: float, *, asked_at: float, answered_at: float, lease_seconds: float) -> ClockWatch:
        """Return the state after a reading of the database clock, made between two readings of the monotonic clock."""
        following = replace(self, database_at=database_at, own_at=asked_at)
        if self.database_at is None:
            return following
        jump = (database_at - self.database_at) - (answered_at - self.own_at)
        if jump < max(JUMP_SECONDS_MIN, lease_seconds * JUMP_SHARE):
            return following
        return replace(following, waits_until=answered_at + lease_seconds)

    def is_steady(self, own_at: float) -> bool:
        """Return whether the database clock may be used to end leases."""
        return own_at >= self.waits_until
