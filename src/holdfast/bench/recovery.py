"""Recovery: a worker is killed with SIGKILL while it runs a task; how long until the next attempt starts?

Victims hold one task each and nobody supervises them, so only their lease tells that they died: what a lost machine
looks like. They die at random moments of their heartbeat, all in one window, while rescuers wait beside them.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import msgspec

from holdfast.bench.crew import Member, crew
from holdfast.bench.member import LOOPS, WORKER
from holdfast.bench.spread import percentile
from holdfast.bench.trial import Trial
from holdfast.bench.waiting import until
from holdfast.errors import Unavailable
from holdfast.settings import Settings

KILLS, KILLS_QUICK, KILLS_FULL = 5, 2, 20
TUNED_LEASE_SECONDS, TUNED_HEARTBEAT_SECONDS = 1.0, 0.3
START_SECONDS_MAX = 30.0

_HOLDERS = """
select t.task_id::text as task_id, w.name
from holdfast.live t
join holdfast.worker w on w.worker_id = t.worker_id
where t.state = 'r'
"""


async def measure_recovery(trial: Trial) -> dict[str, Any]:
    """With the default lease, and with one tuned for speed."""
    defaults = Settings().worker
    kills = KILLS_FULL if trial.is_full else KILLS_QUICK if trial.is_quick else KILLS
    trial.say(f"recovery, {kills} kills, lease {defaults.lease_seconds:g} s")
    default = await recovery_once(trial, kills, defaults.lease_seconds, defaults.heartbeat_seconds)
    trial.say(f"recovery, {kills} kills, lease {TUNED_LEASE_SECONDS:g} s")
    tuned = await recovery_once(trial, kills, TUNED_LEASE_SECONDS, TUNED_HEARTBEAT_SECONDS)
    return {**default, "tuned": tuned}


async def recovery_once(trial: Trial, kills: int, lease_seconds: float, heartbeat_seconds: float) -> dict[str, Any]:
    await trial.arena.fresh()
    trial.marks.clear()
    orders = trial.orders(lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds)
    victims = [msgspec.structs.replace(orders, role=WORKER, number=n, slots=1) for n in range(kills)]
    rescuers = [msgspec.structs.replace(orders, role=WORKER, number=kills + n) for n in range(trial.processes)]
    loops = msgspec.structs.replace(orders, role=LOOPS)
    async with trial.client() as client, crew("holdfast.bench.member", victims) as dying:
        hang = trial.actions.hang
        tasks = {(await client.enqueue(hang, i=i)).task_id: i for i in range(kills)}
        if not await until(lambda: not trial.marks.missing(kills), seconds_max=START_SECONDS_MAX):
            raise Unavailable("The tasks to be interrupted did not start.", code="bench_stuck")
        held = {row["name"]: tasks[row["task_id"]] for row in await trial.arena.fetch(_HOLDERS)}
        async with crew("holdfast.bench.member", [*rescuers, loops]):
            killed_at = dict(
                await asyncio.gather(
                    *(
                        _kill(victim, held[f"bench-{number}"], random.uniform(0, heartbeat_seconds))
                        for number, victim in enumerate(dying)
                    )
                )
            )
            # A second start that never comes is reported, not waited for.
            await until(
                lambda: all(trial.marks.count(i) > 1 for i in range(kills)),
                seconds_max=lease_seconds + START_SECONDS_MAX,
            )
    waits = [trial.marks.started_at(i) - killed_at[i] for i in range(kills) if trial.marks.count(i) > 1]
    return {
        "max": round(max(waits), 3) if waits else None,
        "median": round(percentile(waits, 0.5), 3) if waits else None,
        "min": round(min(waits), 3) if waits else None,
        "kills": kills,
        "recovered": len(waits),
        "overlaps": sum(wait < 0 for wait in waits),
        "extra_executions": sum(max(0, trial.marks.count(i) - 2) for i in range(kills)),
        "lease_seconds": lease_seconds,
        "heartbeat_seconds": heartbeat_seconds,
    }


async def _kill(victim: Member, i: int, delay_seconds: float) -> tuple[int, float]:
    await asyncio.sleep(delay_seconds)
    killed_at = time.monotonic()
    victim.kill()
    await victim.gone()
    return i, killed_at
