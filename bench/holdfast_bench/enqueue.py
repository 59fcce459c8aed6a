"""Enqueue: how fast tasks are accepted, by the thousand and one by one, compared to the raw ceiling.

A round takes less than a second, in which a busy disk or another process would affect only one of the two; so they
alternate within it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast_bench.app import hit
from holdfast_bench.drain import CHUNK, fill
from holdfast_bench.raw import raw_enqueuing
from holdfast_bench.spread import spread
from holdfast_bench.trial import Trial

SINGLE_TASKS = 8_000
BULK_TASKS_MIN, BULK_TASKS_MAX = 10 * CHUNK, 400 * CHUNK
"""Fewer calls would measure the first one, which is slower than all that follow."""
BULK_TURN, SINGLE_TURN = 5 * CHUNK, 100
"""How many tasks one of the two submits before the other's turn."""

Handing = Callable[[int], Awaitable[None]]
"""Submits this many tasks."""


async def measure_enqueue(trial: Trial) -> dict[str, Any]:
    """Measure Holdfast and raw SQL in turn, `rounds` times."""
    bulk, single = (
        max(BULK_TASKS_MIN, min(trial.tasks, BULK_TASKS_MAX) // CHUNK * CHUNK),
        min(SINGLE_TASKS, trial.tasks),
    )
    rates: dict[str, list[float]] = {"bulk": [], "raw_bulk": [], "single": [], "raw_single": []}
    for number in range(1, trial.rounds + 1):
        trial.say(f"enqueue, round {number}: a thousand a call")
        ours, raw = await _bulk_round(trial, bulk)
        rates["bulk"].append(ours)
        rates["raw_bulk"].append(raw)
        trial.say(f"enqueue, round {number}: one by one")
        ours, raw = await _single_round(trial, single)
        rates["single"].append(ours)
        rates["raw_single"].append(raw)
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


async def _bulk_round(trial: Trial, tasks: int) -> tuple[float, float]:
    """Return the tasks accepted per second in calls of a thousand, one call after the other: Holdfast, and raw SQL."""
    await trial.arena.fresh()
    async with trial.client() as client, raw_enqueuing(trial.arena.url, batch=CHUNK) as raw:
        return await _in_turn(lambda number: fill(client, number), raw, tasks, BULK_TURN)


async def _single_round(trial: Trial, tasks: int) -> tuple[float, float]:
    """Return the tasks accepted per second, one call after the other: Holdfast, and raw SQL."""
    await trial.arena.fresh()
    async with trial.client() as client, raw_enqueuing(trial.arena.url, batch=1) as raw:

        async def ours(number: int) -> None:
            for i in range(number):
                await client.enqueue(hit, i=i)

        return await _in_turn(ours, raw, tasks, SINGLE_TURN)


async def _in_turn(ours: Handing, raw: Handing, tasks: int, turn: int) -> tuple[float, float]:
    seconds = {ours: 0.0, raw: 0.0}
    await ours(1)
    turns = -(-tasks // turn)
    for _ in range(turns):
        for hand_in in seconds:
            began_at = time.monotonic()
            await hand_in(turn)
            seconds[hand_in] += time.monotonic() - began_at
    return turns * turn / seconds[ours], turns * turn / seconds[raw]
