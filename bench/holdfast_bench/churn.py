"""Churn: ten times the tasks through one group of workers, with the maintenance loops.

What stays on disk and in memory?

`bytes_per_task` counts tables and indexes of everything stored for a finished task. The live table is measured with its
dead rows, which the engine's own vacuum must keep few.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast_bench.cpu import children_of, resident_bytes
from holdfast_bench.drain import all_settled, fill
from holdfast_bench.trial import Trial

TURNS, TURNS_QUICK = 10, 2
MEGABYTE = 1_000_000
VACUUM_SECONDS = 6.0
"""A little more than the interval between two vacuums of the live table."""

_KEPT = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and c.relname <> 'live'
"""
_BY_TABLE = """
select c.relname, pg_table_size(c.oid)::bigint as table_bytes, pg_indexes_size(c.oid)::bigint as index_bytes
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and pg_total_relation_size(c.oid) > 100000
order by pg_total_relation_size(c.oid) desc
"""
_LIVE = "select pg_total_relation_size('holdfast.live')::bigint"

TURN_TASKS_MAX = 100_000


async def measure_churn(trial: Trial) -> dict[str, Any]:
    """Fill and drain in turns, without pausing the queue: workers run while the next tasks are enqueued."""
    turns, count = TURNS_QUICK if trial.is_quick else TURNS, min(trial.tasks, TURN_TASKS_MAX)
    await trial.arena.fresh()
    before = await trial.arena.fetchval(_KEPT)
    memory: list[list[int]] = []
    live: list[int] = []
    async with trial.client() as client, trial.workers() as workers:
        pids = [pid for worker in workers for pid in children_of(worker.pid)]
        for turn in range(1, turns + 1):
            trial.say(f"churn, turn {turn} of {turns}")
            trial.marks.clear()
            await fill(client, count)
            await all_settled(trial, count)
            memory.append([held for pid in pids if (held := resident_bytes(pid)) is not None])
            live.append(int(await trial.arena.fetchval(_LIVE)))
        await asyncio.sleep(0 if trial.is_quick else VACUUM_SECONDS)
        live.append(int(await trial.arena.fetchval(_LIVE)))
    tasks = turns * count
    kept = await trial.arena.fetchval(_KEPT) - before
    return {
        "bytes_per_task": round(kept / tasks, 1),
        "size": {
            "tasks": tasks,
            "kept_mb": round(kept / MEGABYTE, 2),
            "live_mb": round(live[-1] / MEGABYTE, 2),
            "live_mb_max": round(max(live) / MEGABYTE, 2),
            "tables": [dict(row) for row in await trial.arena.fetch(_BY_TABLE)],
        },
        "memory": _memory(memory),
    }


def _memory(readings: list[list[int]]) -> dict[str, Any]:
    """Compare the end with the first turn, after which a worker has seen all code paths."""
    if not all(readings):
        return {"drift_mb": None, "note": "the memory of a process cannot be read here"}
    drifts = [(last - first) / MEGABYTE for first, last in zip(readings[0], readings[-1], strict=True)]
    worst: float = max(drifts, key=abs)
    return {
        "drift_mb": round(worst, 2),
        "resident_mb": round(max(readings[-1]) / MEGABYTE, 1),
    }
