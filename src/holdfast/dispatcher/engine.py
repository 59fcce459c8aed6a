"""One process's hold on one database: connections, names, the bell. Everything that acts is handed an `Engine`."""

from __future__ import annotations

from types import TracebackType

from holdfast.core.retry import RetryPolicy
from holdfast.settings import Settings
from holdfast.store.catalog import DEFAULT_TENANT_ID, Catalog
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
        self.tenant_id = DEFAULT_TENANT_ID
        self.database = Database(
            url, sessions_max=sessions_max, tap=tap, direct_url=settings.direct_url, prepare=settings.prepare
        )
        self.catalog = Catalog(self.database)
        self.bell = Bell(self.database)
        self.default_policy = _default_policy(settings)
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


def _default_policy(settings: Settings) -> RetryPolicy:
    """What actions and tasks that say nothing get."""
    retry = settings.retry
    return RetryPolicy(
        max_retries=retry.max_retries,
        max_losses=retry.max_losses,
        is_enabled=retry.enabled,
        base_backoff_secs=retry.base_backoff_secs,
        max_backoff_secs=retry.max_backoff_secs,
        backoff_multiplier=retry.backoff_multiplier,
        jitter_factor=retry.jitter_factor,
        timeout_seconds=settings.worker.timeout_seconds,
    ).validated()
