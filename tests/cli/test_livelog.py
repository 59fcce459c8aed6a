"""The live log of `holdfast dev` follows its own tenant's tasks, whatever else happens."""

from __future__ import annotations

import asyncio
import time

from holdfast.cli.livelog import LiveLog
from holdfast.cli.shell import Shell
from holdfast.dispatcher.tenants import create_tenant
from holdfast.testing import factories as a
from holdfast.testing.dispatcher import Dispatcher

ABOUT_NO_TASK = """
    insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
    select $1, 'queue.paused', '{}', '{}', null from generate_series(1, 600)
"""


async def test_it_tells_its_own_tenants_tasks_behind_any_number_of_other_events(engine, holdfast_url, capsys):
    tenant = await create_tenant(engine.database, "acme", actor="anna", reason="")
    log = LiveLog(Shell(), holdfast_url, "acme")
    await asyncio.to_thread(log.start)
    try:
        await engine.database.fetch(ABOUT_NO_TASK, tenant.tenant_id)
        stranger = await a.a_completed_task(Dispatcher(engine.of(1)))
        own = await a.a_completed_task(Dispatcher(engine.of(tenant.tenant_id)))
        told, deadline = "", time.monotonic() + 20
        while f" {own}  shop.charge" not in told:
            assert time.monotonic() < deadline, told
            await asyncio.sleep(0.05)
            told += capsys.readouterr().err
    finally:
        await asyncio.to_thread(log.close)
    assert f" {stranger}  shop.charge" not in told + capsys.readouterr().err
