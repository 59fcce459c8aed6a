"""A retry storm: every task fails with a transient error. How many attempts per second does it cause?

The same storm runs four times: without protection, with a retry quota on the queue, with a breaker on the action, and
with both. Attempts are counted from the recorded failures, first attempts and retries separately.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.authoring.action import Action
from holdfast.core.limits.quota import Quota
from holdfast.engine.limits.queues import pause, resume
from holdfast.engine.limits.quotas import set_quota
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast_bench.app import QUEUE, fail, fail_guarded
from holdfast_bench.trial import Trial
from holdfast_bench.verified import violations

TASKS, TASKS_QUICK = 100_000, 2_000
SECONDS, SECONDS_QUICK = 60, 4
QUOTA = Quota(retries=500, window_seconds=10.0)
ARMS: tuple[tuple[str, bool, bool], ...] = (
    ("nothing", False, False),
    ("quota", True, False),
    ("breaker", False, True),
    ("both", True, True),
)
_CURVE = """
select floor(extract(epoch from f.ended_at - $1))::int as second, count(*) filter (where f.attempt = 1) as firsts,
  count(*) filter (where f.attempt > 1) as retries
from holdfast.failure f
group by 1
order by 1
"""


async def measure_storm(trial: Trial) -> dict[str, Any]:
    """Measure one storm for each kind of protection."""
    tasks = TASKS_QUICK if trial.is_quick else TASKS
    seconds = SECONDS_QUICK if trial.is_quick else SECONDS
    arms = {}
    for name, has_quota, has_breaker in ARMS:
        trial.say(f"storm of {tasks} failing tasks, {seconds} s, in its way: {name}")
        arms[name] = await storm_once(trial, tasks, seconds, has_quota=has_quota, has_breaker=has_breaker)
    return {"tasks": tasks, "seconds": seconds, "quota": str(QUOTA), "arms": arms}


async def storm_once(trial: Trial, tasks: int, seconds: int, *, has_quota: bool, has_breaker: bool) -> dict[str, Any]:
    """Run workers on failing tasks for some seconds."""
    await trial.arena.fresh()
    action: Action[..., Any] = fail_guarded if has_breaker else fail
    async with trial.client() as client:
        engine = client.engine
        await engine.catalog.lane_id(DEFAULT_TENANT_ID, QUEUE, action.name)
        await pause(engine, DEFAULT_TENANT_ID, QUEUE, actor="bench", reason="")
        if has_quota:
            await set_quota(engine, DEFAULT_TENANT_ID, QUOTA, queue=QUEUE, actor="bench", reason="")
        await client.enqueue_many(action, ({"i": i} for i in range(tasks)))
        async with trial.workers():
            began_at = await trial.arena.fetchval("select holdfast.instant()")
            await resume(engine, DEFAULT_TENANT_ID, QUEUE, actor="bench", reason="")
            await asyncio.sleep(seconds)
            rows = await trial.arena.fetch(_CURVE, began_at)
    return _curve(rows, seconds) | {"violations": await violations(trial.arena)}


def _curve(rows: list[Any], seconds: int) -> dict[str, Any]:
    firsts, retries = [0] * seconds, [0] * seconds
    for row in rows:
        if 0 <= row["second"] < seconds:
            firsts[row["second"]], retries[row["second"]] = row["firsts"], row["retries"]
    attempts = [sum(both) for both in zip(firsts, retries, strict=True)]
    return {
        "attempts": sum(attempts),
        "retries": sum(retries),
        "attempts_per_s_max": max(attempts),
        "retries_per_10s_max": max(sum(retries[start : start + 10]) for start in range(seconds)),
        "attempts_per_s": attempts,
        "retries_per_s": retries,
    }
