"""The remote workers of every tenant of a server, over one set of sessions and one LISTEN connection."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType

from holdfast.engine.engine import TENANTS_MAX, Engine
from holdfast.engine.leases import lock_timeouts_for
from holdfast.server.worker_api.remote_workers import SESSIONS_MAX, RemoteWorkers
from holdfast.server.worker_api.sessions import beat_workers
from holdfast.server.worker_api.wait_registry import WaitRegistry
from holdfast.store.database import Database
from holdfast.store.tenancy import TenantDatabase


class TenantWorkers:
    """The worker contract per tenant: `async with TenantWorkers(engine) as workers`; `workers.of(tenant_id)`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tenant_workers: OrderedDict[int, RemoteWorkers] = OrderedDict()
        self._busy: Database = engine.database
        self.wait_registry = WaitRegistry(
            engine.database, engine.catalog, poll_seconds=engine.settings.worker.poll_seconds, alive=self._alive
        )

    async def __aenter__(self) -> TenantWorkers:
        lock_timeouts = lock_timeouts_for(self._engine.settings.worker.lease_seconds)
        self._busy = self._engine.database.apart(sessions_max=SESSIONS_MAX, repeats_itself=True, patience=lock_timeouts)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy, self._busy = self._busy, self._engine.database
        await self.wait_registry.close()
        await busy.close()

    def of(self, tenant_id: int) -> RemoteWorkers:
        """Return the contract for one tenant, isolated from the others."""
        if (workers := self._tenant_workers.pop(tenant_id, None)) is None:
            busy = TenantDatabase(self._busy, tenant_id)
            workers = RemoteWorkers(self._engine.of(tenant_id), wait_registry=self.wait_registry, busy=busy)
        self._tenant_workers[tenant_id] = workers
        while len(self._tenant_workers) > TENANTS_MAX:
            self._tenant_workers.popitem(last=False)
        return workers

    async def _alive(self, worker_ids: Sequence[int]) -> None:
        """Record heartbeats of the workers waiting here, and note in their sessions which drain or are gone."""
        states = await beat_workers(self._engine.database, worker_ids)
        for workers in self._tenant_workers.values():
            workers.worker_sessions.hear(worker_ids, states)
        self.wait_registry.end_waits(worker_id for worker_id in worker_ids if states.get(worker_id) != "active")
