"""Latency: the time from the start of an enqueue to the start of the action, on otherwise idle workers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from holdfast.client.client import Client
from holdfast_bench.app import hit
from holdfast_bench.spread import quantiles, typical
from holdfast_bench.trial import Trial
from holdfast_bench.waiting import until

TASKS = 500
TASKS_QUICK = 100
PAUSE_SECONDS = 0.02
CREWS = (1, 10)
QUANTILES = ("p50", "p90", "p99", "max")
LATE_SECONDS_MAX = 10.0


async def measure_latency(trial: Trial) -> dict[str, Any]:
    """Measure with one worker process, and with ten that compete for the same task, in turn."""
    rounds: dict[int, list[dict[str, Any]]] = {count: [] for count in CREWS}
    for number in range(1, trial.rounds + 1):
        for count in CREWS:
            trial.say(f"latency, round {number}: {count} worker{'s' if count > 1 else ''}")
            rounds[count].append(await latency_once(trial, count))
    found = {f"workers_{count}": _summary(every) for count, every in rounds.items()}
    return {**found[f"workers_{CREWS[0]}"], **found}


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    measured = [{name: one[name] for name in QUANTILES} for one in rounds if "p50" in one]
    return {
        **(typical(measured) if measured else {}),
        "p50s": [one["p50"] for one in measured],
        "p99s": [one["p99"] for one in measured],
        "tasks": rounds[0]["tasks"],
        "losses": sum(one["losses"] for one in rounds),
        "doubles": sum(one["doubles"] for one in rounds),
    }


async def latency_once(trial: Trial, workers: int) -> dict[str, Any]:
    tasks = min(trial.tasks, TASKS_QUICK if trial.is_quick else TASKS)
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client, trial.workers(trial.many_workers(workers)):
        await client.enqueue(hit, i=tasks)  # the first one also interns names and opens connections
        await asyncio.sleep(0.5)
        await one_by_one(trial, client, tasks)
    return waits_of(trial, tasks)


async def one_by_one(trial: Trial, client: Client, tasks: int) -> None:
    """Enqueue tasks with a pause between them, and wait for their marks."""
    began_at = time.monotonic()
    for i in range(tasks):
        await asyncio.sleep(max(0.0, began_at + i * PAUSE_SECONDS - time.monotonic()))
        trial.marks.send(i)
        await client.enqueue(hit, i=i)
    await until(lambda: not trial.marks.missing(tasks), seconds_max=LATE_SECONDS_MAX)


def waits_of(trial: Trial, tasks: int) -> dict[str, Any]:
    """Return the milliseconds from before each enqueue to the start of its action."""
    waits = [(trial.marks.started_at(i) - trial.marks.sent_at(i)) * 1000 for i in range(tasks) if trial.marks.count(i)]
    shown = quantiles(waits, *QUANTILES) if waits else {}
    return {**shown, "tasks": tasks, "losses": trial.marks.missing(tasks), "doubles": trial.marks.doubles(tasks)}
