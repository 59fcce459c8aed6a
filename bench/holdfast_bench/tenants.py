"""Tenants: whether a tenant with a million queued tasks delays another tenant's first task.

The latency is measured from before the enqueue to the start of the action, each task finding its lane empty, as in the
latency measurement: with nothing else in the database, with a million queued tasks of another tenant, and while that
tenant's workers process them. Workers belong to a tenant, so both have their own; the third number also includes
sharing the processors.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from holdfast.engine.identity.tenants import create_tenant
from holdfast_bench.app import hit
from holdfast_bench.backlog import CHUNK
from holdfast_bench.drain import pause, resume, tidy
from holdfast_bench.latency import TASKS as LATENCY_TASKS
from holdfast_bench.latency import one_by_one, waits_of
from holdfast_bench.trial import Trial

QUEUED, QUEUED_QUICK = 1_000_000, 5_000
SECOND = "second"


async def measure_tenants(trial: Trial) -> dict[str, Any]:
    """Measure the latencies three times; `ratio` is the median with the backlog relative to that without."""
    queued = QUEUED_QUICK if trial.is_quick else QUEUED
    trial.say("tenants: the first tasks of a tenant alone")
    alone = await _firsts(trial, 0, works=False)
    trial.say(f"tenants: beside {queued:,} queued tasks of another tenant")
    beside = await _firsts(trial, queued, works=False)
    trial.say(f"tenants: while workers of that tenant work on {queued:,} tasks")
    busy = await _firsts(trial, queued, works=True)
    arms = (alone, beside, busy)
    return {
        "ratio": round(beside["p50"] / alone["p50"], 3),
        "p99_ratio": round(beside["p99"] / alone["p99"], 3),
        "busy_ratio": round(busy["p50"] / alone["p50"], 3),
        "alone_ms": alone,
        "beside_ms": beside,
        "busy_ms": busy,
        "queued": queued,
        "losses": sum(arm["losses"] for arm in arms),
        "doubles": sum(arm["doubles"] for arm in arms),
    }


async def _firsts(trial: Trial, queued: int, *, works: bool) -> dict[str, Any]:
    """Measure latencies of the second tenant with `queued` tasks of the first, whose queue is paused unless `works`."""
    tasks = min(trial.tasks, LATENCY_TASKS)
    await trial.arena.fresh()
    trial.marks.clear()
    async with AsyncExitStack() as stack:
        async with trial.client() as first:
            await create_tenant(first.engine.database, SECOND, actor="bench", reason="measure")
            await first.enqueue(hit, i=tasks)
            await pause(first)
            for start in range(0, queued, CHUNK):
                await first.enqueue_many(hit, [{"i": tasks}] * min(CHUNK, queued - start))
            await tidy(trial)
            orders = trial.orders()
            await stack.enter_async_context(trial.workers([orders]))
            if works:
                await resume(first)
        second = msgspec.structs.replace(orders, tenant=SECOND, processes=1, has_loops=False)
        await stack.enter_async_context(trial.workers([second]))
        client = await stack.enter_async_context(trial.client(SECOND))
        await client.enqueue(hit, i=tasks)  # the first one also interns names and opens connections
        await asyncio.sleep(0.5)
        await one_by_one(trial, client, tasks)
        return waits_of(trial, tasks)
