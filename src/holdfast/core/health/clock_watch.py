"""Whether the database's clock can be believed: it is compared with a clock of this process that nobody can set.

A clock that is set forward makes every lease look expired at once, while all of them are held. A process that notices
waits one lease before it ends anything because of the time: by then every holder has heard that its lease is over, and
has stopped its work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

JUMP_SECONDS_MIN = 1.0
JUMP_SHARE = 0.25
"""A jump is no smaller than a second, and than this share of a lease: less than that expires none that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWatch:
    """What one process knows of the database's clock; all times in seconds, each by the clock that it names."""

    database_at: float | None = None
    """What the database's clock showed when it was last read."""
    own_at: float = 0.0
    """What this process's steady clock showed before that."""
    waits_until: float = float("-inf")
    """By the steady clock: until then nothing is ended because of the time."""

    def read(self, database_at: float, *, asked_at: float, answered_at: float, lease_seconds: float) -> ClockWatch:
        """The database's clock was read once more, between two readings of the steady one."""
        following = replace(self, database_at=database_at, own_at=asked_at)
        if self.database_at is None:
            return following
        jump = (database_at - self.database_at) - (answered_at - self.own_at)
        if jump < max(JUMP_SECONDS_MIN, lease_seconds * JUMP_SHARE):
            return following
        return replace(following, waits_until=answered_at + lease_seconds)

    def is_steady(self, own_at: float) -> bool:
        """Whether what the database's clock says may end something."""
        return own_at >= self.waits_until
