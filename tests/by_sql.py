"""Tasks that passed no client: SQL checks no types, so what an attempt makes of them can be seen."""

from __future__ import annotations

import json
from typing import Any

from holdfast.client.client import Client
from holdfast.client.task import Task


async def by_sql(client: Client, action: str, **given: Any) -> Task[Any]:
    """Enqueue with the function of the schema."""
    number = await client.engine.database.fetchval("select holdfast.enqueue($1, $2::jsonb)", action, json.dumps(given))
    return client.task(str(number))
