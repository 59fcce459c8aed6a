"""Enqueue: how fast tasks are accepted, by the thousand and one by one, next to the raw ceiling."""

from __future__ import annotations

import time
from typing import Any

from holdfast.bench.app import hit
from holdfast.bench.drain import CHUNK, fill
from holdfast.bench.raw import raw_enqueue_per_s
from holdfast.bench.spread import spread
from holdfast.bench.trial import Trial

SINGLE_TASKS = 3_000
BULK_TASKS_MIN, BULK_TASKS_MAX = 10 * CHUNK, 100 * CHUNK
"""Fewer calls would measure the first one, which is slower than all that follow."""


async def measure_enqueue(trial: Trial) -> dict[str, Any]:
    """Ours and raw in turn, `rounds` times."""
    bulk, single = (
        max(BULK_TASKS_MIN, min(trial.tasks, BULK_TASKS_MAX) // CHUNK * CHUNK),
        min(SINGLE_TASKS, trial.tasks),
    )
    rates: dict[str, list[float]] = {"bulk": [], "raw_bulk": [], "single": [], "raw_single": []}
    url = trial.arena.url
    for number in range(1, trial.rounds + 1):
        trial.say(f"enqueue, round {number}: a thousand a call")
        rates["bulk"].append(await bulk_per_s(trial, bulk))
        rates["raw_bulk"].append(await raw_enqueue_per_s(url, bulk, batch=CHUNK))
        trial.say(f"enqueue, round {number}: one by one")
        rates["single"].append(await single_per_s(trial, single))
        rates["raw_single"].append(await raw_enqueue_per_s(url, single, batch=1))
    return _summary(rates)


def _summary(rates: dict[str, list[float]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for kind in ("bulk", "single"):
        ratios = [ours / raw for ours, raw in zip(rates[kind], rates[f"raw_{kind}"], strict=True)]
        summary |= {
            f"{kind}_per_s": round(spread(rates[kind]).median, 1),
            f"{kind}_ratio": round(spread(ratios).median, 4),
            f"raw_{kind}_per_s": round(spread(rates[f"raw_{kind}"]).median, 1),
            f"{kind}_ratios": [round(ratio, 4) for ratio in ratios],
            f"{kind}_spread": spread(rates[kind]),
            f"raw_{kind}_spread": spread(rates[f"raw_{kind}"]),
        }
    return summary


async def bulk_per_s(trial: Trial, tasks: int) -> float:
    """Tasks accepted per second in calls of a thousand, one call after the other."""
    await trial.arena.fresh()
    async with trial.client() as client:
        await fill(client, 1)
        began_at = time.monotonic()
        await fill(client, tasks)
        return tasks / (time.monotonic() - began_at)


async def single_per_s(trial: Trial, tasks: int) -> float:
    """Tasks accepted per second, one call after the other."""
    await trial.arena.fresh()
    async with trial.client() as client:
        await client.enqueue(hit, i=0)
        began_at = time.monotonic()
        for i in range(tasks):
            await client.enqueue(hit, i=i)
        return tasks / (time.monotonic() - began_at)
