"""Backlog: whether a long queue slows the drain down.

The same drain runs without a backlog, with a million queued tasks of another lane, and with a million more of its own
lane.
"""

from __future__ import annotations

from typing import Any

from holdfast.client.client import Client
from holdfast.errors import Unavailable
from holdfast_bench.app import other
from holdfast_bench.drain import Drained, drain_once, fill, none_runs, pause, resume, tidy
from holdfast_bench.trial import Trial
from holdfast_bench.waiting import until

BACKLOG = 1_000_000
BACKLOG_QUICK_TIMES = 10
DRAINED_MAX = 200_000
CHUNK = 5_000
DRAIN_SECONDS_MAX = 300.0

_SETTLED = "select count(*) from holdfast.attempt"


async def measure_backlog(trial: Trial) -> dict[str, Any]:
    """Measure the drain rates; `ratio` is the worse of both backlogs relative to none."""
    tasks = min(trial.tasks, DRAINED_MAX)
    backlog = tasks * BACKLOG_QUICK_TIMES if trial.is_quick else BACKLOG
    trial.say(f"backlog: {tasks:,} tasks alone")
    alone = [await drain_once(trial, tasks)]
    trial.say(f"backlog: {tasks:,} tasks beside {backlog:,} of another lane")
    beside = await drain_once(trial, tasks, before=lambda client: _fill_other(client, backlog))
    trial.say(f"backlog: {tasks:,} tasks of {backlog:,} in one lane")
    within = await _drain_part(trial, tasks, backlog)
    if not trial.is_quick:
        alone.append(await drain_once(trial, tasks))
    none_per_s = sum(one.per_s for one in alone) / len(alone)
    return {
        "ratio": round(min(beside.per_s, within) / none_per_s, 4),
        "other_lane_ratio": round(beside.per_s / none_per_s, 4),
        "same_lane_ratio": round(within / none_per_s, 4),
        "none_per_s": round(none_per_s, 1),
        "other_lane_per_s": round(beside.per_s, 1),
        "same_lane_per_s": round(within, 1),
        "backlog": backlog,
        "tasks": tasks,
        **_wrong([*alone, beside]),
    }


def _wrong(drains: list[Drained]) -> dict[str, int]:
    return {"doubles": sum(one.doubles for one in drains), "losses": sum(one.losses for one in drains)}


async def _fill_other(client: Client, backlog: int) -> None:
    """Enqueue tasks that no worker here serves."""
    for start in range(0, backlog, CHUNK):
        await client.enqueue_many(other, [{"i": 0}] * min(CHUNK, backlog - start))


async def _drain_part(trial: Trial, tasks: int, backlog: int) -> float:
    """Return the tasks per second while the first `tasks` of a long queue run; the rest stays queued."""
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client:
        await fill(client, tasks + backlog, chunk=CHUNK)
        await pause(client)
        await tidy(trial)
        async with trial.workers(), trial.arena.connection() as connection:
            began_at = await resume(client)
            if not await until(lambda: not trial.marks.missing(tasks), seconds_max=DRAIN_SECONDS_MAX):
                raise Unavailable("A drain from a long queue did not end.", code="bench_stuck")
            await pause(client)
            seconds = await none_runs(connection) - began_at
    return float(await trial.arena.fetchval(_SETTLED)) / seconds
