"""Drain: how fast two worker processes run queued tasks, compared to the raw ceiling.

Tasks are enqueued through the public client while their queue is paused; workers connect; then the queue is resumed,
and the time is measured until the last result is committed. Every task must have run once, and the database must
verify.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from holdfast.client.client import Client
from holdfast.engine.limits import queues
from holdfast.errors import Unavailable
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast_bench.app import QUEUE, hit
from holdfast_bench.cpu import children_of, cores_used, cpu_seconds
from holdfast_bench.crew import Member
from holdfast_bench.raw import BATCHES, raw_drain_per_s
from holdfast_bench.spread import spread
from holdfast_bench.trial import Trial
from holdfast_bench.verified import violations

CHUNK = 1_000
SILENCE_SECONDS_MAX = 60.0
RUN_LOOK_SECONDS, SETTLE_LOOK_SECONDS = 0.005, 0.001

_RUNS = "select exists (select from holdfast.live where state = 'r')"
_LEFT = "select count(*) from holdfast.live t join holdfast.lane l on l.lane_id = t.lane_id where l.action = $1"
_TIDY = ("vacuum analyze holdfast.live", "vacuum analyze holdfast.body", "analyze holdfast.lane")


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """One drain. `doubles` ran more than once, `losses` not at all; `cores` is the processor use by kind of process."""

    tasks: int
    seconds: float
    per_s: float
    doubles: int
    losses: int
    violations: list[str]
    cores: Mapping[str, float]


async def measure_drain(trial: Trial, *, beside: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Measure Holdfast, raw SQL and what runs `beside` in turn, `rounds` times."""
    ours: list[Drained] = []
    raw: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for number in range(1, trial.rounds + 1):
        trial.say(f"drain, round {number}: ours")
        ours.append(await drain_once(trial, trial.tasks))
        for batch in BATCHES:
            trial.say(f"drain, round {number}: raw, {batch} a batch")
            raw[batch].append(
                await raw_drain_per_s(trial.arena.url, trial.tasks, batch=batch, processes=trial.processes)
            )
        await beside()
    return _summary(trial, ours, raw)


def _summary(trial: Trial, ours: list[Drained], raw: Mapping[int, list[float]]) -> dict[str, Any]:
    best = max(BATCHES, key=lambda batch: spread(raw[batch]).median)
    ceilings = [max(rates) for rates in zip(*raw.values(), strict=True)]
    ratios = [one.per_s / ceiling for one, ceiling in zip(ours, ceilings, strict=True)]
    rate = spread(one.per_s for one in ours)
    return {
        "tasks_per_s": round(rate.median, 1),
        "raw_ceiling_per_s": round(spread(raw[best]).median, 1),
        "ratio": round(spread(ratios).median, 4),
        "tasks": trial.tasks,
        "processes": trial.processes,
        "slots": trial.slots,
        "spread": rate,
        "raw_spread": spread(raw[best]),
        "raw_by_batch": {str(batch): spread(rates) for batch, rates in raw.items()},
        "ratios": [round(ratio, 4) for ratio in ratios],
        "doubles": sum(one.doubles for one in ours),
        "losses": sum(one.losses for one in ours),
        "violations": [text for one in ours for text in one.violations],
        "cores": ours[-1].cores,
    }


async def drain_once(
    trial: Trial,
    tasks: int,
    *,
    before: Callable[[Client], Awaitable[None]] | None = None,
    workers: Callable[[], AbstractAsyncContextManager[list[Member]]] | None = None,
) -> Drained:
    """Drain `tasks` tasks (and what `before` enqueues) from a fresh schema, and time it until all are committed."""
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client:
        if before is not None:
            await before(client)
        await fill(client, tasks)
        await pause(client)
        await tidy(trial)
        async with (workers or trial.workers)() as members:
            pids = [pid for worker in members for pid in children_of(worker.pid)]
            used = await cpu_seconds(trial.arena, pids)
            began_at = await resume(client)
            seconds = await all_settled(trial, tasks) - began_at
            cores = cores_used(used, await cpu_seconds(trial.arena, pids), seconds)
    return Drained(
        tasks=tasks,
        seconds=seconds,
        per_s=tasks / seconds,
        doubles=trial.marks.doubles(tasks),
        losses=trial.marks.missing(tasks),
        violations=await violations(trial.arena),
        cores=cores,
    )


async def fill(client: Client, tasks: int, *, chunk: int = CHUNK) -> None:
    """Enqueue `tasks` tasks, `chunk` per call."""
    for start in range(0, tasks, chunk):
        await client.enqueue_many(hit, [{"i": i} for i in range(start, min(start + chunk, tasks))])


async def tidy(trial: Trial) -> None:
    """Vacuum and analyze, as autovacuum does with a table that has existed for a minute; raw SQL gets the same."""
    for statement in _TIDY:
        await trial.arena.fetch(statement)


async def pause(client: Client, queue: str = QUEUE) -> None:
    await queues.pause(client.engine, DEFAULT_TENANT_ID, queue, actor="bench", reason="measuring")


async def resume(client: Client, queue: str = QUEUE) -> float:
    """Resume the queue and wake the workers; return when that began."""
    began_at = time.monotonic()
    await queues.resume(client.engine, DEFAULT_TENANT_ID, queue, actor="bench", reason="measuring")
    return began_at


async def all_settled(trial: Trial, tasks: int, *, settled: Callable[[Any], Awaitable[float]] | None = None) -> float:
    """Wait until all ran and the last result is committed; return when. Give up when there is no more progress.

    `settled` waits for another end condition and returns when it was met, so that counting afterwards is not measured.
    """
    async with trial.arena.connection() as connection:
        moved_at, last = time.monotonic(), tasks
        while missing := trial.marks.missing(tasks):
            if missing != last:
                moved_at, last = time.monotonic(), missing
            if time.monotonic() - moved_at > SILENCE_SECONDS_MAX:
                raise _stuck(missing, tasks)
            await asyncio.sleep(RUN_LOOK_SECONDS)
        settled_at = await (settled or none_runs)(connection)
        if left := await connection.fetchval(_LEFT, hit.name):
            raise _stuck(left, tasks)
    return settled_at


async def none_runs(connection: Any) -> float:
    """Wait until every claimed task is settled; return when. The queue must be paused or empty."""
    runs = await connection.fetchval(_RUNS)
    while runs:
        await asyncio.sleep(SETTLE_LOOK_SECONDS)
        runs = await connection.fetchval(_RUNS)
    return time.monotonic()


def _stuck(left: int, tasks: int) -> Unavailable:
    return Unavailable(f"{left} of {tasks} tasks were not completed, and nothing moves.", code="bench_stuck")
