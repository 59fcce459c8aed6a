"""What attempts elsewhere say with their reports is kept with them, once, however often they are sent."""

from __future__ import annotations

import asyncpg
import pytest
from tests.core.flows import a_diamond
from tests.flow.steps import finish

from holdfast.core.tasks.outcome import Completed
from holdfast.server.worker_api.completed_reports import CompletedReport
from holdfast.server.worker_api.remote_workers import RemoteWorkers
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.store.statements import sql


@pytest.fixture
def holdfast_settings():
    """Short leases, and so little patience with locks."""
    return Settings(worker=WorkerSettings(lease_seconds=1.2, heartbeat_seconds=0.3))


@pytest.mark.parametrize("way", ["exchange", "complete"])
async def test_a_report_that_is_undone_and_repeated_keeps_its_notes_once(harness, engine, way):
    run = await harness.runs.start(a_diamond())
    [lease] = await harness.claim(1)
    done = CompletedReport(
        task_id=lease.claimed.task_id,
        attempt=lease.attempt,
        lease_token=lease.token,
        outcome=Completed(b"1"),
        notes=[("log", '{"message": "hi"}')],
    )
    async with RemoteWorkers(engine) as workers:

        async def report():
            if way == "complete":
                await workers.complete(done)
                return
            answer = await workers.exchange(lease.worker_id, held=None, dones=[done], queues=None, limit=0)
            assert (answer.accepted, answer.refused) == (1, [])

        async with engine.database.transaction() as holder:
            await holder.fetch(sql("lock_runs"), [int(run)])
            with pytest.raises(asyncpg.LockNotAvailableError):
                await report()
        for _ in range(2):
            await report()
    assert await engine.database.fetchval("select count(*) from holdfast.note") == 1
    await finish(harness)
