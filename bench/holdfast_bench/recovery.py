"""Recovery: the time from killing a worker with SIGKILL during a task until the next attempt starts.

In one case its supervisor dies too, so that only the lease expiry reveals the loss, as with a lost machine. In the
other the supervisor survives and sees the worker die. Workers are killed at random moments of their heartbeat, while
other workers wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from typing import Any

import msgspec

from holdfast.errors import Unavailable
from holdfast_bench.app import hang
from holdfast_bench.member import Orders
from holdfast_bench.spread import percentile
from holdfast_bench.trial import Trial
from holdfast_bench.waiting import until

KILLS, KILLS_QUICK, KILLS_FULL = 5, 2, 20
TUNED_LEASE_SECONDS, TUNED_HEARTBEAT_SECONDS = 1.0, 0.3
START_SECONDS_MAX = 30.0


async def measure_recovery(trial: Trial) -> dict[str, Any]:
    """Measure a lost machine with the default lease and with a short one, and a lost process under its supervisor."""
    kills = KILLS_FULL if trial.is_full else KILLS_QUICK if trial.is_quick else KILLS
    default = trial.orders()
    tuned = msgspec.structs.replace(
        default, lease_seconds=TUNED_LEASE_SECONDS, heartbeat_seconds=TUNED_HEARTBEAT_SECONDS
    )
    trial.say(f"recovery, {kills} machines lost, lease {default.lease_seconds:g} s")
    found = await recovery_once(trial, kills, default)
    trial.say(f"recovery, {kills} machines lost, lease {tuned.lease_seconds:g} s")
    found["tuned"] = await recovery_once(trial, kills, tuned)
    trial.say(f"recovery, {kills} processes killed under their parents")
    found["supervised"] = await recovery_once(trial, kills, default, is_supervised=True)
    return found


async def recovery_once(trial: Trial, kills: int, orders: Orders, *, is_supervised: bool = False) -> dict[str, Any]:
    """Let `kills` workers run one task each, kill them, and measure when each task starts again on another worker."""
    await trial.arena.fresh()
    trial.marks.clear()
    victim = msgspec.structs.replace(orders, processes=1, slots=1, has_loops=False)
    async with trial.client() as client, trial.workers([victim] * kills):
        for i in range(kills):
            await client.enqueue(hang, i=i)
        if not await until(lambda: not trial.marks.missing(kills), seconds_max=START_SECONDS_MAX):
            raise Unavailable("The tasks to be interrupted did not start.", code="bench_stuck")
        async with trial.workers([orders]):
            phases = [random.uniform(0, orders.heartbeat_seconds) for _ in range(kills)]
            killed_at = await asyncio.gather(*(_kill(trial, i, phase, is_supervised) for i, phase in enumerate(phases)))
            # A second start that never happens is reported, not waited for.
            await until(
                lambda: all(trial.marks.count(i) > 1 for i in range(kills)),
                seconds_max=orders.lease_seconds + START_SECONDS_MAX,
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
        "lease_seconds": orders.lease_seconds,
        "heartbeat_seconds": orders.heartbeat_seconds,
    }


async def _kill(trial: Trial, i: int, delay_seconds: float, is_supervised: bool) -> float:
    """Kill the worker that runs task `i`, with its supervisor unless `is_supervised`; return when."""
    worker, parent = trial.marks.holder(i)
    await asyncio.sleep(delay_seconds)
    if not is_supervised:
        _end(parent)
    killed_at = time.monotonic()
    _end(worker)
    return killed_at


def _end(pid: int) -> None:
    """Kill a process that may have ended: a child of a killed supervisor ends by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
