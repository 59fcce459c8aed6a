"""Probe: ask workers that offer a URL whether they are well, and keep what they answered.

A worker registers its URL as the label `probe_url`. Any answer of 2xx is well; several failures in a row make a worker
unhealthy, one success makes it well again. The verdict is shown beside the worker; leases decide about its work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.engine.engine import Engine
from holdfast.errors import Invalid
from holdfast.net.guarded_request import Guarded, NotReached
from holdfast.store.statements import sql

_TAKE = sql("take_probes")
_RECORD = sql("record_probe")

LABEL = "probe_url"
WORKERS_MAX = 100
AT_ONCE_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeView:
    """What a worker's URL answered last. `is_healthy` is None until enough was seen to tell."""

    url: str
    checked_at: datetime | None
    is_healthy: bool | None
    failures: int
    detail: str


async def probe_once(engine: Engine, guarded: Guarded) -> int:
    """Ask the workers whose turn it is; answers how many that were."""
    settings = engine.settings.webhooks
    rows = await engine.database.fetch(_TAKE, settings.probe_seconds, WORKERS_MAX)
    turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def ask(row: Any) -> tuple[Any, ...]:
        async with turn:
            is_well, detail = await _asked(guarded, row["url"], settings.probe_timeout_seconds)
        return (row["worker_id"], row["due_at"], is_well, detail, settings.probe_failures_max)

    for asked in asyncio.as_completed([ask(row) for row in rows]):
        await engine.database.fetch(_RECORD, *await asked)
    return len(rows)


async def _asked(guarded: Guarded, url: str, seconds_max: float) -> tuple[bool, str]:
    try:
        answer = await guarded.ask("GET", url, seconds_max=seconds_max)
    except NotReached as error:
        return False, str(error)
    except Invalid as error:
        return False, error.detail
    return answer.is_success, answer.sentence
