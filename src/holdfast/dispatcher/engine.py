"""One process's hold on one database: connections, names, the bell. Everything that acts is handed an `Engine`."""

from __future__ import annotations

from types import TracebackType

from holdfast.settings import Settings
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Tap
from holdfast.store.migrate import migrate, require_current
from holdfast.wake.bell import Bell


class Engine:
    """Open it with `async with Engine(url, settings) as engine`."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        sessions_max: int = 10,
        migrates: bool = False,
        tap: Tap | None = None,
    ) -> None:
        self.settings = settings
        self.database = Database(url, sessions_max=sessions_max, tap=tap)
        self.catalog = Catalog(self.database)
        self.bell = Bell(self.database)
        self._migrates = migrates

    async def __aenter__(self) -> Engine:
        await self.database.open()
        try:
            if self._migrates:
                await migrate(self.database)
            else:
                await require_current(self.database)
        except BaseException:
            await self.database.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.bell.close()
        await self.database.close()
