"""Probe workers that offer a health URL, and store the results.

A worker registers its URL as the label `probe_url`. Any 2xx response is healthy; several consecutive failures make a
worker unhealthy, one success makes it healthy again. The result is only displayed with the worker; leases decide about
its tasks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.engine.engine import Engine
from holdfast.errors import Invalid
from holdfast.net.guarded_request import Guarded, NotReached
from holdfast.store.sql.webhooks import webhooks as webhooks_sql

LABEL = "probe_url"
WORKERS_MAX = 100
AT_ONCE_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeView:
    """The last probe of a worker's URL. `is_healthy` is None until there were enough probes to decide."""

    url: str
    checked_at: datetime | None
    is_healthy: bool | None
    failures: int
    detail: str


async def probe_once(engine: Engine, guarded: Guarded) -> int:
    """Probe the workers that are due; return how many."""
    settings = engine.settings.webhooks
    rows = await webhooks_sql.take_probes(engine.database, settings.probe_seconds, WORKERS_MAX)
    turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def ask(row: webhooks_sql.TakeProbesRow) -> tuple[Any, ...]:
        async with turn:
            is_well, detail = await _asked(guarded, row.url, settings.probe_timeout_seconds)
        return (row.worker_id, row.due_at, is_well, detail, settings.probe_failures_max)

    for asked in asyncio.as_completed([ask(row) for row in rows]):
        await webhooks_sql.record_probe(engine.database, *await asked)
    return len(rows)


async def _asked(guarded: Guarded, url: str, seconds_max: float) -> tuple[bool, str]:
    try:
        answer = await guarded.ask("GET", url, seconds_max=seconds_max)
    except NotReached as error:
        return False, str(error)
    except Invalid as error:
        return False, error.detail
    return answer.is_success, answer.sentence
