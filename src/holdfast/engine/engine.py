"""The engine: one process's connections to one database, with name caches and the notifier.

Functions that change data and notify others take an `Engine`; functions that only read take its database.
"""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType

from holdfast.core.health.liveness import silent_seconds
from holdfast.core.tasks.policy import PolicyDefaults, RetryPolicy
from holdfast.engine.epoch import check_server
from holdfast.engine.failure_log import FailureLog
from holdfast.engine.identity.tenants import find_tenant
from holdfast.net.server_url import database_url
from holdfast.settings.settings import Settings
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Tap
from holdfast.store.migrate import migrate, require_current
from holdfast.store.tenancy import TenantDatabase
from holdfast.wakeups.notifier import Notifier

TENANTS_MAX = 1_000
"""Number of tenants whose engines and cached names a server keeps; the least recently used is dropped."""


class Engine:
    """Connections, caches and settings of one process. Open it with `async with Engine(url, settings) as engine`."""

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
        self.tenant_id = 0
        """The tenant that the engine works for; set when the engine is opened."""
        direct_url = None if settings.direct_url is None else database_url(settings.direct_url)
        self.database = Database(
            url, sessions_max=sessions_max, tap=tap, direct_url=direct_url, prepare=settings.prepare
        )
        self.catalog = Catalog(self.database)
        self.notifier = Notifier(self.database)
        self.policy_defaults = _policy_defaults(settings)
        self.failures = FailureLog()
        self._migrates = migrates
        self._tenants: OrderedDict[int, Engine] = OrderedDict()

    @property
    def silent_seconds(self) -> float:
        """Return how long a worker may go without a heartbeat before it counts as lost."""
        return silent_seconds(self.settings.worker.lease_seconds)

    def of(self, tenant_id: int) -> Engine:
        """Return an engine for one tenant on the same connections; row-level security hides the rows of other tenants.

        Servers use it, because their callers belong to many tenants. It is open as long as this engine is. It has its
        own name cache, because a shared cache would leak names between tenants.
        """
        engine = self._tenants.pop(tenant_id, None) or _TenantEngine(self, tenant_id)
        self._tenants[tenant_id] = engine
        while len(self._tenants) > TENANTS_MAX:
            self._tenants.popitem(last=False)
        return engine

    async def __aenter__(self) -> Engine:
        await self.database.open()
        try:
            if self._migrates:
                await migrate(self.database)
            else:
                await require_current(self.database)
            await self._watch()
            self.tenant_id = (await find_tenant(self.database, self.settings.tenant)).tenant_id
        except BaseException:
            await self.database.close()
            raise
        return self

    async def _watch(self) -> None:
        """Check every new connection from now on for a change of the database server."""
        self.database.watch.look = check_server
        self.database.watch.on_change(self._forget)
        await self.look()

    async def look(self) -> None:
        """Check which server this is. A pooler may route an existing connection to another server."""
        async with self.database.session() as session:
            await self.database.watch.greet(session)

    def _forget(self) -> None:
        self.catalog.forget_names()
        for engine in self._tenants.values():
            engine.catalog.forget_names()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.notifier.close()
        await self.database.close()


class _TenantEngine(Engine):
    def __init__(self, whole: Engine, tenant_id: int) -> None:
        self.settings = whole.settings
        self.tenant_id = tenant_id
        self.database = TenantDatabase(whole.database, tenant_id)
        self.catalog = Catalog(self.database)
        self.notifier = whole.notifier
        self.policy_defaults = whole.policy_defaults
        self.failures = whole.failures
        self._whole = whole

    def of(self, tenant_id: int) -> Engine:
        return self if tenant_id == self.tenant_id else self._whole.of(tenant_id)

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the parent engine closes the shared resources."""


def _policy_defaults(settings: Settings) -> PolicyDefaults:
    """Return the policies of actions and tasks that set no policy of their own."""
    retry = settings.retry
    policy = RetryPolicy(
        max_losses=retry.max_losses,
        is_enabled=retry.enabled,
        base_backoff_secs=retry.base_backoff_secs,
        max_backoff_secs=retry.max_backoff_secs,
        backoff_multiplier=retry.backoff_multiplier,
        jitter_factor=retry.jitter_factor,
        timeout_seconds=settings.worker.timeout_seconds,
        retry_unclassified=retry.unclassified,
    )
    return PolicyDefaults.of(policy, max_retries=retry.max_retries)
