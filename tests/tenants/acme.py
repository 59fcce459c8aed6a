"""Two tenants on one database: `default`, who asks, and `acme`, whose business it is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.flows import a_diamond, a_node, an_order_edge
from tests.datasets.hands import orders

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.limits.breaker import Breaker
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.campaigns.commands import start_campaign
from holdfast.engine.datasets.declare import declare
from holdfast.engine.effects.gate import OpenEffect, Sender, list_effects, open_effect
from holdfast.engine.engine import Engine
from holdfast.engine.identity.members import add_member
from holdfast.engine.identity.tenants import TenantView, create_tenant
from holdfast.engine.identity.tokens import create_token
from holdfast.engine.webhooks.commands import add_webhook
from holdfast.store.database import Database
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness

CANARY = "acme-canary"
WHO: dict[str, Any] = {"actor": "anna", "reason": "because"}


@pytest.fixture
async def acme(engine: Engine) -> TenantView:
    return await create_tenant(engine.database, "acme", **WHO)


@pytest.fixture
def at_acme(engine: Engine, acme: TenantView) -> EngineHarness:
    """Acme's verbs, by hand, behind its wall."""
    return EngineHarness(engine.of(acme.tenant_id))


@pytest.fixture
async def theirs(engine: Engine, acme: TenantView, at_acme: EngineHarness) -> dict[str, Any]:
    """One of everything that acme has, by what it is called."""
    await engine.database.fetch("select setval('holdfast.task_id', 7654321)")
    return await everything(engine, at_acme, acme.name, CANARY)


async def everything(engine: Engine, at: EngineHarness, tenant: str, name: str) -> dict[str, Any]:
    """One of everything for a tenant, by what it is called; what has a name has this one."""
    own, tenant_id = at.engine, at.engine.tenant_id
    hidden = {"queue": name, "tags": (name,)}
    await declare(engine.database, tenant_id, orders())
    keyed = await at.enqueue(a.a_task(key=name, **hidden))
    sending = await a.a_running_task(at, **hidden)
    sender = Sender(claimed=sending.claimed, tenant=tenant)
    await open_effect(
        own.database, own.catalog, sender, OpenEffect(name="smtp.send", user_key="one", ordinal=0, digest=b"")
    )
    await at.settle(sending, Completed(b"null"))
    failed = await a.a_failed_task(at, **hidden)
    running = await a.a_running_task(at, **hidden)
    [letter] = await at.letters(failed)
    run = await at.runs.start(a_diamond())
    asking = await at.runs.start(an_approval())
    await at.schedules.keep(name)
    await at.guard(a.ACTION, breaker=Breaker())
    campaign = await start_campaign(own, tenant_id, letter.fingerprint, **WHO)
    [effect] = await list_effects(own.database, tenant_id)
    token = await create_token(engine.database, tenant_id, name=name, role="viewer", **WHO)
    member = await add_member(
        engine.database, tenant_id, issuer="google", subject=name, role="viewer", name=name, **WHO
    )
    await add_webhook(own, tenant_id, name, f"https://8.8.8.8/{name}", **WHO)
    return {
        "task": int(keyed.task_id),
        "sent": int(sending.task_id),
        "failed": int(failed),
        "running": int(running.task_id),
        "lease": running,
        "letter": int(letter.dead_letter_id),
        "fingerprint": letter.fingerprint,
        "campaign": int(campaign.campaign_id),
        "run": int(run),
        "asking": int(asking),
        "node": "go",
        "flow": an_approval().name,
        "schedule": name,
        "dataset": "orders",
        "version": 1,
        "queue": name,
        "action": a.ACTION,
        "worker": running.worker_id,
        "effect": effect.idempotency_key,
        "key": name,
        "name": name,
        "token": token.token_id,
        "member": member.member_id,
    }


def an_approval() -> FlowDefinition:
    """A flow that asks before it does anything."""
    go = Node(name="go", action="approval", kind=NodeKind.WAIT, config={"approval": True})
    return FlowDefinition(name="shop.asking", nodes=(go, a_node("after")), edges=(an_order_edge("go>after"),))


MISSING = {
    "task": 999_999_999,
    "sent": 999_999_999,
    "failed": 999_999_999,
    "running": 999_999_999,
    "letter": 999_999,
    "fingerprint": "0" * 16,
    "campaign": 999_999,
    "run": 999_999_999,
    "asking": 999_999_999,
    "node": "go",
    "flow": "no.such",
    "schedule": "nothing-here",
    "dataset": "nothing_here",
    "version": 1,
    "queue": "nothing-here",
    "action": "no.such",
    "worker": 999_999,
    "effect": "no-such-effect",
    "key": "no-such-key",
    "name": "nothing-here",
    "token": "nosuchtoken",
    "member": 999_999,
}

_TABLES = """
select c.relname::text as name
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
order by 1
"""


async def tables(database: Database) -> list[str]:
    """Every table whose rows belong to a tenant."""
    return [row["name"] for row in await database.fetch(_TABLES)]


async def rows_of(database: Database, tenant_id: int) -> dict[str, str]:
    """All that a tenant has, so that two moments can be compared."""
    return {
        name: str(
            await database.fetchval(
                f"select coalesce(string_agg(t::text, e'\\n' order by t::text), '') from holdfast.{name} t"
                " where t.tenant_id = $1",
                tenant_id,
            )
        )
        for name in await tables(database)
    }
