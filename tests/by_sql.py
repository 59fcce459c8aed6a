"""Tasks that passed no client: SQL checks no types, so what an attempt makes of them can be seen."""

from __future__ import annotations

import json
from typing import Any

from holdfast.client.client import Client
from holdfast.client.task import Task
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.engine.workers.declare import declare_action


async def declare(engine: Engine, *actions: str) -> None:
    """Declare actions as a worker does: SQL enqueues no others."""
    for action in actions:
        await engine.catalog.declare(engine.tenant_id, action, "default", RetryPolicy(), "")


async def by_sql(client: Client, action: str, **given: Any) -> Task[Any]:
    """Declare an action of the client's app as its worker does, and enqueue with the function of the schema."""
    engine, known = client.engine, client.action(action)
    rules = known.rules(engine.policy_defaults)
    await declare_action(engine.catalog, engine.tenant_id, action, rules, version="", launcher=known.launcher)
    number = await engine.database.fetchval("select holdfast.enqueue($1, $2::jsonb)", action, json.dumps(given))
    return client.task(str(number))
