"""The scenarios of the sweep that concern limits of queues, breakers and quotas."""

from __future__ import annotations

from typing import Any

from tests.crash import acts
from tests.crash.case import Case
from tests.crash.repair import register
from tests.crash.tasks import ACTION, claim_tasks, enqueue_tasks, judge_exchange, was_accepted

from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.limits.declare import Guards, declare_guards
from holdfast.engine.limits.quotas import set_quota
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.factories import a_failure


async def arrange_limited(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Four tasks of a queue that may run two at once and start a few a second."""
    given["queue"] = f"limited-{given['round']}"
    await enqueue_tasks(engine, given, 4, queue=given["queue"])
    await engine.database.fetch(
        "update holdfast.queue set max_running = 2, starts_per_second = 100 where name = $1", given["queue"]
    )
    given["worker_id"] = await register(engine, "victim", [ACTION])
    given["actions"] = [ACTION]


async def judge_limited(case: Case) -> None:
    assert [one.state for one in case.ended] == ["completed"] * 4
    assert not case.said or len(case.said[-1]) <= 2
    started = await case.engine.database.fetchval(
        "select count(*) from holdfast.attempts where worker_id = $1", case.given["worker_id"]
    )
    assert started <= 2


async def arrange_guarded(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Three leases of an action whose breaker opens with the second failure."""
    await engine.database.fetch("delete from holdfast.breaker")
    await declare_guards(engine, DEFAULT_TENANT_ID, {ACTION: Guards(breaker=Breaker(attempts_min=2))})
    await enqueue_tasks(engine, given, 3)
    claimed = await claim_tasks(engine, given, 3)
    given["leases"] = [acts.plain_lease(one) for one in claimed]
    given["lane_id"] = claimed[0].lane_id
    given["outcomes"] = ["fail", "complete", "fail"]
    given["opened"] = await _openings(engine)


async def _openings(engine: Engine) -> int:
    found = await engine.database.fetchval("select count(*) from holdfast.event where kind = 'breaker.opened'")
    return int(found)


async def judge_guarded(case: Case) -> None:
    """The breaker opened exactly if the failures that open it were accepted."""
    accepted = [await was_accepted(case, lease) for lease in case.given["leases"]]
    assert len(set(accepted)) == 1
    assert await _openings(case.engine) - case.given["opened"] == int(accepted[0])
    await judge_exchange(case)


async def arrange_trial(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """An open breaker that may be tried now, with two trials for four tasks."""
    await engine.database.fetch("delete from holdfast.breaker")
    await declare_guards(engine, DEFAULT_TENANT_ID, {ACTION: Guards(breaker=Breaker(trials=2))})
    await enqueue_tasks(engine, given, 4)
    await engine.database.fetch("update holdfast.breaker set state = 'o', trial_at = holdfast.instant()")
    given["worker_id"] = await register(engine, "victim", [ACTION])
    given["actions"] = [ACTION]


async def arrange_metered(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Five due retries of a queue that may retry two a minute."""
    given["queue"] = f"metered-{given['round']}"
    await enqueue_tasks(engine, given, 5, queue=given["queue"], policy={"base_backoff_secs": 0.0})
    await set_quota(engine, DEFAULT_TENANT_ID, Quota(retries=2), queue=given["queue"], actor="test", reason="")
    claimed = await claim_tasks(engine, given, 5)
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(one, Failed(a_failure())) for one in claimed])


async def judge_metered(case: Case) -> None:
    """Everybody had his retry in the end; what was promoted was counted."""
    assert not case.said or case.said[-1] <= 2
    assert [(one.state, one.attempt) for one in case.ended] == [("completed", 2)] * 5
