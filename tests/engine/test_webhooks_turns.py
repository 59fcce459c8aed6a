"""Tenants take turns at the deliveries of a process: slow receivers of one leave room for those of others."""

from __future__ import annotations

import pytest
from tests.engine.test_observe import until_settled
from tests.net.receiver import receiving, silent
from tests.waiting import eventually

from holdfast.engine.identity.tenants import create_tenant
from holdfast.engine.webhooks import commands as webhook_commands
from holdfast.engine.webhooks import deliver
from holdfast.engine.webhooks.commands import add_webhook, list_webhooks
from holdfast.engine.webhooks.deliver import Deliveries
from holdfast.errors import Conflict
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded
from holdfast.settings.settings import EgressSettings, Settings
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_completed_task


@pytest.fixture
def holdfast_settings():
    return Settings(egress=EgressSettings(allow=("127.0.0.0/8",), ports="*"))


@pytest.fixture
async def deliveries(engine):
    guarded = Guarded(EgressRules.of(engine.settings.egress))
    made = Deliveries(engine, guarded)
    yield made
    await made.close()
    await guarded.close()


async def asked(receiver):
    """Wait until a receiver was asked."""
    await eventually(lambda: receiver.asked)


async def test_slow_receivers_of_one_tenant_leave_room_for_another(engine, harness, deliveries, monkeypatch):
    monkeypatch.setattr(deliver, "WEBHOOKS_MAX", 3)
    monkeypatch.setattr(deliver, "TENANT_WEBHOOKS_MAX", 2)
    beta = EngineHarness(engine.of((await create_tenant(engine.database, "beta", actor="anna", reason="")).tenant_id))
    await until_settled(harness)
    async with receiving(silent) as slow, receiving() as quick:
        for number in range(4):
            await add_webhook(engine, 1, f"slow-{number}", slow.url, actor="anna")
        await a_completed_task(harness)
        await until_settled(harness)
        await deliveries.begin()
        assert sorted(deliveries._running.values()) == [1, 1]
        await add_webhook(engine, beta.engine.tenant_id, "quick", quick.url, actor="anna")
        await a_completed_task(beta)
        await until_settled(harness)
        await deliveries.begin()
        await asked(quick)


async def test_where_room_is_scarce_every_tenant_gets_a_turn(engine, harness, deliveries, monkeypatch):
    monkeypatch.setattr(deliver, "WEBHOOKS_MAX", 2)
    beta = await create_tenant(engine.database, "beta", actor="anna", reason="")
    async with receiving() as receiver:
        for number in range(3):
            await add_webhook(engine, 1, f"many-{number}", receiver.url, actor="anna")
        await add_webhook(engine, beta.tenant_id, "one", receiver.url, actor="anna")
        await deliveries.begin()
        assert sorted(deliveries._running.values()) == [1, beta.tenant_id]


async def test_a_tenant_has_so_many_webhooks_and_no_more(engine, monkeypatch):
    monkeypatch.setattr(webhook_commands, "WEBHOOKS_MAX", 1)
    await add_webhook(engine, 1, "first", "http://127.0.0.1/", actor="anna")
    with pytest.raises(Conflict) as refused:
        await add_webhook(engine, 1, "second", "http://127.0.0.1/", actor="anna")
    assert refused.value.code == "too_many_webhooks"
    assert len(await list_webhooks(engine.database, 1)) == 1
