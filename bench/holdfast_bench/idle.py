"""Idle: what ten idle workers cost the database server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from holdfast_bench.cpu import BACKENDS, WORKERS, children_of, cores_used, cpu_seconds
from holdfast_bench.trial import Trial

WORKER_COUNT = 10
SECONDS, SECONDS_QUICK = 60.0, 10.0


async def measure_idle(trial: Trial) -> dict[str, Any]:
    """Measure the processor time of all server processes that serve ten idle workers and the maintenance loops."""
    seconds = SECONDS_QUICK if trial.is_quick else SECONDS
    trial.say(f"idle, {WORKER_COUNT} workers for {seconds:g} s")
    await trial.arena.fresh()
    async with trial.workers(trial.many_workers(WORKER_COUNT)) as workers:
        pids = [pid for worker in workers for pid in children_of(worker.pid)]
        await asyncio.sleep(2.0)
        before, began_at = await cpu_seconds(trial.arena, pids), time.monotonic()
        await asyncio.sleep(seconds)
        after = await cpu_seconds(trial.arena, pids)
        cores = cores_used(before, after, time.monotonic() - began_at)
    is_known = bool(after[BACKENDS])
    return {
        "backend_fraction": cores[BACKENDS] if is_known else None,
        "worker_fraction": cores[WORKERS],
        "workers": WORKER_COUNT,
        "seconds": seconds,
        "connections": len(after[BACKENDS]),
        **({} if is_known else {"note": "the server's processes cannot be read from here"}),
    }
