"""HTTP: the drain of workers with database access and of remote workers, in turns on the same server.

It also measures how soon a task reaches one of many waiting workers, and what idle connections cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.worker.transport.http import CONCURRENT_EXCHANGES
from holdfast_bench.app import hit
from holdfast_bench.cpu import BACKENDS, WORKERS, cores_used, cpu_seconds
from holdfast_bench.crew import READY_SECONDS_MAX, Member, crew
from holdfast_bench.drain import Drained, drain_once
from holdfast_bench.spread import quantiles, spread
from holdfast_bench.trial import Trial
from holdfast_bench.waiting import until

SIDE = "holdfast_bench.http_side"
BATCH = 100
POLLERS, POLLERS_QUICK = 200, 50
CONNECTIONS, CONNECTIONS_QUICK = 2_000, 200
LATENCY_TASKS, LATENCY_TASKS_QUICK = 500, 100
IDLE_SECONDS, IDLE_SECONDS_QUICK = 60.0, 10.0
PAUSE_SECONDS = 0.02
LATE_SECONDS_MAX = 15.0
CROWD_SECONDS_MAX = 120.0


class ServerOrders(msgspec.Struct, frozen=True, kw_only=True, tag="server"):
    """Serve this database."""

    url: str


class CrowdOrders(msgspec.Struct, frozen=True, kw_only=True, tag="crowd"):
    """Open connections to this server: `pollers` long-poll for one task at a time; `readers` stream events."""

    url: str
    pollers: int
    readers: int
    marks: str
    capacity: int


async def measure_http(trial: Trial) -> dict[str, Any]:
    """Measure the drains in turns, then the waiting workers and the idle connections."""
    direct: list[Drained] = []
    same: list[Drained] = []
    http: list[Drained] = []
    small = [msgspec.structs.replace(trial.orders(), slots=BATCH)]
    for number in range(1, trial.rounds + 1):
        trial.say(f"http, round {number}: direct")
        direct.append(await drain_once(trial, trial.tasks))
        trial.say(f"http, round {number}: direct, batches of {BATCH}")
        same.append(await drain_once(trial, trial.tasks, workers=lambda: trial.workers(small)))
        trial.say(f"http, round {number}: over HTTP, batches of {BATCH}")
        http.append(await drain_once(trial, trial.tasks, workers=lambda: _workers_elsewhere(trial)))
    ratios = [one.per_s / other.per_s for one, other in zip(http, direct, strict=True)]
    ratios_same = [one.per_s / other.per_s for one, other in zip(http, same, strict=True)]
    every = (*direct, *same, *http)
    return {
        "tasks_per_s": round(spread(one.per_s for one in http).median, 1),
        "direct_per_s": round(spread(one.per_s for one in direct).median, 1),
        "direct_same_batch_per_s": round(spread(one.per_s for one in same).median, 1),
        "ratio": round(spread(ratios).median, 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ratio_same_batch": round(spread(ratios_same).median, 4),
        "batch": BATCH,
        "tasks": trial.tasks,
        "doubles": sum(one.doubles for one in every),
        "losses": sum(one.losses for one in every),
        "violations": [text for one in every for text in one.violations],
        "cores": http[-1].cores,
        "claim_ms": await _claim_latency(trial),
        "idle": await _idle(trial),
    }


@asynccontextmanager
async def http_server(trial: Trial) -> AsyncIterator[tuple[str, Member]]:
    """Start a server of this trial's database in a separate process; yield its URL."""
    async with crew(SIDE, [ServerOrders(url=trial.arena.url)]) as [member]:
        yield await member.line(READY_SECONDS_MAX), member


@asynccontextmanager
async def _workers_elsewhere(trial: Trial) -> AsyncIterator[list[Member]]:
    """Start the same workers over HTTP."""
    async with http_server(trial) as (url, _):
        # A worker runs several exchanges concurrently, which share its slots.
        orders = msgspec.structs.replace(trial.orders(), url=url, slots=CONCURRENT_EXCHANGES * BATCH, has_loops=False)
        async with trial.workers([orders]) as members:
            yield members


@asynccontextmanager
async def _crowd(trial: Trial, url: str, *, pollers: int, readers: int) -> AsyncIterator[Member]:
    orders = CrowdOrders(
        url=url, pollers=pollers, readers=readers, marks=str(trial.marks.path), capacity=trial.marks.capacity
    )
    async with crew(SIDE, [orders]) as [member]:
        await member.line(CROWD_SECONDS_MAX)
        await asyncio.sleep(1.0)
        yield member


async def _claim_latency(trial: Trial) -> dict[str, Any]:
    """Measure from before the call to enqueue until one of many waiting workers has the task."""
    pollers = POLLERS_QUICK if trial.is_quick else POLLERS
    tasks = min(trial.tasks, LATENCY_TASKS_QUICK if trial.is_quick else LATENCY_TASKS)
    trial.say(f"http, {pollers} workers that wait")
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client, http_server(trial) as (url, _):
        await client.enqueue(hit, i=tasks)  # the first one also interns names and opens connections
        async with _crowd(trial, url, pollers=pollers, readers=0):
            began_at = time.monotonic()
            for i in range(tasks):
                await asyncio.sleep(max(0.0, began_at + i * PAUSE_SECONDS - time.monotonic()))
                trial.marks.send(i)
                await client.enqueue(hit, i=i)
            await until(lambda: not trial.marks.missing(tasks), seconds_max=LATE_SECONDS_MAX)
    waits = [(trial.marks.started_at(i) - trial.marks.sent_at(i)) * 1000 for i in range(tasks) if trial.marks.count(i)]
    shown = quantiles(waits, "p50", "p99", "max") if waits else {}
    return {**shown, "pollers": pollers, "tasks": tasks, "losses": trial.marks.missing(tasks)}


async def _idle(trial: Trial) -> dict[str, Any]:
    """Measure the processor time of an idle server: half of the connections wait for tasks, half for events."""
    connections = CONNECTIONS_QUICK if trial.is_quick else CONNECTIONS
    seconds = IDLE_SECONDS_QUICK if trial.is_quick else IDLE_SECONDS
    trial.say(f"http, {connections} idle connections for {seconds:g} s")
    await trial.arena.fresh()
    half = connections // 2
    async with http_server(trial) as (url, member), _crowd(trial, url, pollers=half, readers=connections - half):
        before, began_at = await cpu_seconds(trial.arena, [member.pid]), time.monotonic()
        await asyncio.sleep(seconds)
        after = await cpu_seconds(trial.arena, [member.pid])
        cores = cores_used(before, after, time.monotonic() - began_at)
    return {
        "server_fraction": cores[WORKERS],
        "backend_fraction": cores[BACKENDS],
        "connections": connections,
        "seconds": seconds,
    }
