"""xmin: how much an old snapshot, which keeps every finished row of the live table, slows a drain.

The same drain runs with and without a REPEATABLE READ transaction that is open from before the first claim until the
end, in turn. Nothing can be vacuumed meanwhile, so the more tasks run, the more dead rows claims must avoid.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast_bench.crew import Member
from holdfast_bench.drain import Drained, drain_once
from holdfast_bench.spread import spread
from holdfast_bench.trial import Trial

_DEAD = "select n_dead_tup from pg_stat_user_tables where relid = 'holdfast.live'::regclass"


async def measure_xmin(trial: Trial) -> dict[str, Any]:
    """Measure without and with a snapshot in turn, `rounds` times; `ratio` is the median ratio of the rounds."""
    free: list[Drained] = []
    pinned: list[Drained] = []
    dead = 0

    @asynccontextmanager
    async def under_a_snapshot() -> AsyncIterator[list[Member]]:
        nonlocal dead
        async with trial.arena.connection() as connection:
            async with connection.transaction(isolation="repeatable_read"):
                await connection.fetch("select count(*) from holdfast.lane")
                async with trial.workers() as members:
                    yield members
            dead = int(await trial.arena.fetchval(_DEAD) or 0)

    for number in range(1, trial.rounds + 1):
        trial.say(f"xmin, round {number}: nothing is held back")
        free.append(await drain_once(trial, trial.tasks))
        trial.say(f"xmin, round {number}: a snapshot is open")
        pinned.append(await drain_once(trial, trial.tasks, workers=under_a_snapshot))
    ratios = [one.per_s / other.per_s for one, other in zip(pinned, free, strict=True)]
    arms = (*free, *pinned)
    return {
        "ratio": round(spread(ratios).median, 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "pinned_per_s": round(spread(one.per_s for one in pinned).median, 1),
        "free_per_s": round(spread(one.per_s for one in free).median, 1),
        "tasks": trial.tasks,
        "dead_rows": dead,
        "losses": sum(one.losses for one in arms),
        "doubles": sum(one.doubles for one in arms),
        "violations": [text for one in arms for text in one.violations],
    }
