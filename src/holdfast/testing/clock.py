"""A controllable clock for the database of a test.

All of Holdfast's SQL reads the time from `holdfast.instant()`. The test kit replaces that function in its temporary
database, so an hour passes at once and for every session. Never use it on a database you keep. The time that actions of
this process read (`ctx.now()`) moves along, unless their app has its own clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.codec.clock import follow, unfollow
from holdfast.core.values.duration import seconds_of
from holdfast.store.database import Database


class DatabaseClock:
    """Moves the time of one database. `reset` restores the real time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.offset_seconds = 0.0
        self._frozen_at: datetime | None = None

    def now(self) -> datetime:
        """Return the moved or frozen time, based on this machine's clock, or on the database's where it was frozen."""
        return (self._frozen_at or datetime.now(UTC)) + timedelta(seconds=self.offset_seconds)

    async def advance(self, duration: str | float = 0, *, seconds: float = 0) -> None:
        """Move the time forward: `advance("2m")`, `advance(seconds=11)`."""
        await self.step(seconds_of(duration) + seconds)

    async def step(self, seconds: float) -> None:
        """Set the clock forward, or back with a negative number, as an operator or NTP might."""
        await self._set(self.offset_seconds + seconds)

    async def freeze(self) -> None:
        """Stop the time; only `advance` and `step` move it."""
        self._frozen_at = await self._database.fetchval("select statement_timestamp()")
        await self._set(self.offset_seconds)

    async def reset(self) -> None:
        """Restore the database's own time."""
        self._frozen_at = None
        await self._set(0.0)

    async def _set(self, offset_seconds: float) -> None:
        now = "statement_timestamp()" if self._frozen_at is None else f"timestamptz '{self._frozen_at.isoformat()}'"
        passed = f" + interval '{offset_seconds:.6f} seconds'" if offset_seconds else ""
        async with self._database.session() as session:
            await session.execute(
                "create or replace function holdfast.instant() returns timestamptz"
                f" language sql stable parallel safe return {now}{passed}"
            )
        self.offset_seconds = offset_seconds
        if offset_seconds or self._frozen_at is not None:
            follow(self)
        else:
            unfollow(self)
