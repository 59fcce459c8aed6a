"""The live log of `holdfast dev` follows its own tenant's tasks, whatever else happens."""

from __future__ import annotations

import asyncio
import io
import sys
from datetime import UTC, datetime

from tests.waiting import eventually

from holdfast.cli.ui.event_log import LiveLog
from holdfast.cli.ui.shell import Shell
from holdfast.engine.identity.tenants import create_tenant
from holdfast.engine.queries.events import Event
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness

ABOUT_NO_TASK = """
    insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
    select $1, 'queue.paused', '{}', '{}', null from generate_series(1, 600)
"""


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_it_is_plain_where_stderr_is_a_file_though_stdout_is_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    event = Event(cursor="0:1", at=datetime.now(UTC), kind="task.failed", task_id="7", attempt=1, detail=None, order=0)
    LiveLog(Shell(), "postgresql://127.0.0.1:1/nowhere", "default")._print_counts([event])
    assert capsys.readouterr().err.endswith("✕ failed 1\n")


async def test_it_tells_its_own_tenants_tasks_behind_any_number_of_other_events(engine, holdfast_url, capsys):
    tenant = await create_tenant(engine.database, "acme", actor="anna", reason="")
    log = LiveLog(Shell(), holdfast_url, "acme")
    await asyncio.to_thread(log.start)
    try:
        await engine.database.fetch(ABOUT_NO_TASK, tenant.tenant_id)
        stranger = await a.a_completed_task(EngineHarness(engine.of(1)))
        own = await a.a_completed_task(EngineHarness(engine.of(tenant.tenant_id)))
        told = []

        def is_told() -> bool:
            told.append(capsys.readouterr().err)
            return f" {own}  shop.charge" in "".join(told)

        await eventually(is_told)
    finally:
        await asyncio.to_thread(log.close)
    assert f" {stranger}  shop.charge" not in "".join(told) + capsys.readouterr().err
