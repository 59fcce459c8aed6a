"""Drain: how fast two worker processes run tasks that wait already, next to the raw ceiling.

Tasks go in through the public client while their queue is paused; workers connect; then the queue is resumed and the
clock runs until the last result is committed. Every task must have run once, and the database must verify.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from holdfast.bench.actions import QUEUE
from holdfast.bench.cpu import cores_used, cpu_seconds
from holdfast.bench.raw import BATCHES, raw_drain_per_s
from holdfast.bench.spread import spread
from holdfast.bench.trial import Trial
from holdfast.bench.verified import violations
from holdfast.client.client import Client
from holdfast.errors import Unavailable

CHUNK = 1_000
SILENCE_SECONDS_MAX = 60.0

_PAUSE = """
update holdfast.queue
set paused_at = statement_timestamp(), paused_by = 'bench'
where name = $1
"""
_RESUME = """
update holdfast.queue
set paused_at = null, paused_by = null
where name = $1
"""
_LEFT = "select count(*) from holdfast.live t join holdfast.lane l using (lane_id) where l.action = $1"
_RUNNING = "select count(*) from holdfast.live where state = 'r'"
_TIDY = ("vacuum analyze holdfast.live", "vacuum analyze holdfast.body", "analyze holdfast.lane")


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """One drain. `doubles` ran more than once, `losses` not at all; `cores` is who used how much of the machine."""

    tasks: int
    seconds: float
    per_s: float
    doubles: int
    losses: int
    violations: list[str]
    cores: Mapping[str, float]


async def measure_drain(trial: Trial) -> dict[str, Any]:
    """Ours and raw in turn, `rounds` times."""
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


async def drain_once(trial: Trial, tasks: int, *, before: Callable[[Client], Awaitable[None]] | None = None) -> Drained:
    """A fresh schema, `tasks` waiting (and what `before` put there), and the time until all of them are committed."""
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client:
        if before is not None:
            await before(client)
        await fill(trial, client, tasks)
        await pause(client)
        await tidy(trial)
        async with trial.workers() as workers:
            pids = [worker.pid for worker in workers]
            used = await cpu_seconds(trial.arena, pids)
            began_at = await resume(client)
            await all_settled(trial, tasks)
            seconds = trial.marks.settled_at() - began_at
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


async def fill(trial: Trial, client: Client, tasks: int, *, chunk: int = CHUNK) -> None:
    """Hand in `tasks` tasks, `chunk` a call."""
    hit = trial.actions.hit
    for start in range(0, tasks, chunk):
        await client.enqueue_many(hit, [{"i": i} for i in range(start, min(start + chunk, tasks))])


async def tidy(trial: Trial) -> None:
    """Vacuum and analyze, as autovacuum does with a table that has been there for a minute; raw gets the same."""
    for statement in _TIDY:
        await trial.arena.fetch(statement)


async def pause(client: Client) -> None:
    await client.engine.database.fetch(_PAUSE, QUEUE)


async def resume(client: Client) -> float:
    """Open the gate and wake the workers; answers when that began."""
    began_at = time.monotonic()
    await client.engine.database.fetch(_RESUME, QUEUE)
    await client.wake()
    return began_at


async def none_runs(trial: Trial) -> None:
    """Wait until every claimed task is settled; the queue must be paused or empty."""
    running = 1
    while running:
        await asyncio.sleep(0.02)
        running = await trial.arena.fetchval(_RUNNING)


async def all_settled(trial: Trial, tasks: int) -> None:
    """Wait until all ran and none is left in the live table; give up when nothing moves any more."""
    moved_at, last = time.monotonic(), tasks
    while (missing := trial.marks.missing(tasks)) or await trial.arena.fetchval(_LEFT, "bench.hit"):
        if missing != last:
            moved_at, last = time.monotonic(), missing
        if time.monotonic() - moved_at > SILENCE_SECONDS_MAX:
            raise Unavailable(
                f"{missing} of {tasks} tasks did not run, and nothing moved for {SILENCE_SECONDS_MAX:g} s.",
                code="bench_stuck",
            )
        await asyncio.sleep(0.02)
