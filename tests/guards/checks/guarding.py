"""What guards breakers and quotas: states and spells, trials granted, locks, tenants, and the schema."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, elsewhere, refuses

from holdfast.core.limits.breaker import Breaker, CircuitState
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Completed, Failed, Released
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.claim import Claimer
from holdfast.engine.lifecycle.tasks.reconcile import promote, reconcile_once
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.limits.breakers import show_breaker, steer
from holdfast.engine.limits.declare import Guards, declare_guards
from holdfast.engine.limits.quotas import change_quota, change_quota_in, list_quotas, set_quota
from holdfast.errors import Conflict
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.engine_harness import HeldLease
from holdfast.testing.factories import ACTION, a_failure, a_task

DOWN = Failed(a_failure("connection reset by peer"))
OURS_SET = f"tenant_id = {DEFAULT_TENANT_ID} and verb = 'quota.set'"


async def guarded(stage: Stage, *, tasks: int = 12, trials: int = 2) -> list[str]:
    await stage.clock.freeze()
    await stage.harness.guard(ACTION, breaker=Breaker(attempts_min=2, trials=trials))
    return [one.task_id for one in await stage.harness.enqueue_many(a_task(), [{}] * tasks)]


async def opened(stage: Stage, **options: int) -> list[str]:
    task_ids = await guarded(stage, **options)
    for lease in await stage.harness.claim(2):
        await stage.harness.settle(lease, DOWN)
    return task_ids


async def state(stage: Stage) -> str:
    return (await stage.harness.breaker(ACTION)).state


@check
async def a_breaker_opened_since_the_plan_gives_nothing(stage: Stage) -> None:
    await guarded(stage)
    claimer: Claimer = await stage.harness._claimer("early")
    async with stage.engine.database.session() as session:
        await claimer._look(session, 0.0)
        for lease in await stage.harness.claim(2):
            await stage.harness.settle(lease, DOWN)
        assert await claimer._take(session, 5, {}) == []


@check
async def a_lane_on_trial_gives_nothing_unless_granted(stage: Stage) -> None:
    await guarded(stage)
    claimer: Claimer = await stage.harness._claimer("early")
    async with stage.engine.database.session() as session:
        await claimer._look(session, 0.0)
        for lease in await stage.harness.claim(2):
            await stage.harness.settle(lease, DOWN)
        await stage.clock.advance("30s")
        assert len(await stage.harness.claim(5)) == 2
        assert await claimer._take(session, 5, {}) == []


@check
async def a_closed_breaker_holds_nothing_back(stage: Stage) -> None:
    first, second, *_ = await guarded(stage)
    await stage.harness.claim_task(first)
    assert await stage.harness.reserve(second) is not None


@check
async def a_named_task_of_an_open_breaker_is_not_started(stage: Stage) -> None:
    *_, last = await opened(stage)
    with refuses(Conflict):
        await stage.harness.claim_task(last)
    assert await stage.harness.reserve(last) is None


@check
async def no_more_named_trials_than_granted(stage: Stage) -> None:
    *_, second, first = await opened(stage, trials=1)
    await stage.clock.advance("30s")
    await stage.harness.claim_task(first)
    with refuses(Conflict):
        await stage.harness.claim_task(second)
    assert await stage.harness.reserve(second) is None


@check
async def a_repeated_report_counts_once(stage: Stage) -> None:
    await guarded(stage)
    await stage.harness.guard(ACTION, breaker=Breaker(attempts_min=100))
    good, bad = await stage.harness.claim(2)
    for _ in range(2):
        await stage.harness.settle(good, Completed(b"1"))
        await stage.harness.settle(bad, DOWN)
    found = await stage.harness.breaker(ACTION)
    assert (found.counted_attempts, found.counted_failures) == (2, 1)


async def _with_old_attempts(stage: Stage) -> list[HeldLease]:
    """A half-open breaker and two attempts that began before it opened."""
    await guarded(stage)
    old = await stage.harness.claim(2, worker="slow")
    for lease in await stage.harness.claim(2):
        await stage.harness.settle(lease, DOWN)
    for _ in range(4):
        await stage.clock.advance("8s")
        await stage.harness.heartbeat(*old)
    assert len(await stage.harness.claim(5)) == 2
    return old


@check
async def an_attempt_from_before_it_opened_is_no_trial(stage: Stage) -> None:
    good, bad = await _with_old_attempts(stage)
    await stage.harness.settle(good, Completed(b"1"))
    assert (await stage.harness.breaker(ACTION)).passed == 0
    await stage.harness.settle(bad, DOWN)
    assert await state(stage) == "half_open"


@check
async def an_open_breaker_counts_nothing(stage: Stage) -> None:
    await guarded(stage)
    (late,) = await stage.harness.claim(1, worker="slow")
    for lease in await stage.harness.claim(2):
        await stage.harness.settle(lease, DOWN)
    await stage.harness.settle(late, DOWN)
    assert (await stage.harness.breaker(ACTION)).counted_attempts == 2


@check
async def workers_that_see_the_same_failures_open_it_once(stage: Stage) -> None:
    await guarded(stage)
    mine, theirs = await stage.harness.claim(2), await stage.harness.claim(2, worker="second")
    catalog = stage.engine.catalog

    async def fail_too() -> None:
        async with stage.engine.database.transaction() as other:
            await settle(other, catalog, [report_of(lease.claimed, DOWN) for lease in theirs])

    async with stage.engine.database.transaction() as session:
        await settle(session, catalog, [report_of(lease.claimed, DOWN) for lease in mine])
        failing = asyncio.ensure_future(fail_too())
        await stage.waits(failing)
    await failing
    assert await stage.value("select count(*) from holdfast.event where kind = 'breaker.opened'") == 1


@check
async def a_trial_that_waited_passes_nothing_reopened(stage: Stage) -> None:
    await opened(stage)
    await stage.clock.advance("30s")
    bad, good = await stage.harness.claim(2)
    catalog = stage.engine.catalog

    async def pass_too() -> None:
        async with stage.engine.database.transaction() as other:
            await settle(other, catalog, [report_of(good.claimed, Completed(b"1"))])

    async with stage.engine.database.transaction() as session:
        await settle(session, catalog, [report_of(bad.claimed, DOWN)])
        passing = asyncio.ensure_future(pass_too())
        await stage.waits(passing)
    await passing
    assert await state(stage) == "open"


@check
async def claimers_at_once_start_no_more_trials_than_granted(stage: Stage) -> None:
    await opened(stage)
    await stage.harness.steer(ACTION, CircuitState.HALF_OPEN)
    first, second = await stage.harness._claimer("first"), await stage.harness._claimer("second")
    async with stage.engine.database.transaction() as session:
        assert len(await first.claim(session, 5, now=0.0)) == 2

        async def claim_too() -> int:
            async with stage.engine.database.session() as other:
                return len(await second.claim(other, 5, now=0.0))

        claiming = asyncio.ensure_future(claim_too())
        await stage.waits(claiming)
    assert await claiming == 0


@check
async def claimers_do_not_wait_for_a_breaker_that_is_moving(stage: Stage) -> None:
    await opened(stage)
    await stage.clock.advance("30s")
    claimer = await stage.harness._claimer("second")
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        await held.fetch("select from holdfast.breaker for update")
        assert await claimer.claim(session, 5, now=0.0) == []


async def _another_shop(stage: Stage) -> None:
    """Another tenant with an action, a queue, a breaker and quotas of the same names."""
    await another_tenant(stage)
    await stage.engine.catalog.lane_id(OTHER_TENANT_ID, "default", ACTION)
    guards = {ACTION: Guards(breaker=Breaker(), quota=Quota(retries=1))}
    await declare_guards(stage.engine, OTHER_TENANT_ID, guards)
    for queue in ("default", None):
        await set_quota(stage.engine, OTHER_TENANT_ID, Quota(retries=1), queue=queue, actor="other", reason="")


async def _a_held_retry_of_another_tenant(stage: Stage) -> None:
    """Two retries of theirs, of which their quota lets one go."""
    other = await elsewhere(stage)
    for task in await other.enqueue_many(a_task(base_backoff_secs=0.0), [{}, {}]):
        await other.settle(await other.claim_task(task.task_id), DOWN)
    assert await stage.harness.reconcile_once() == 1


@check
async def what_a_guard_was_before_is_what_the_change_replaced(stage: Stage) -> None:
    """Two who change at once: the second waits for the first and tells of what that one left."""
    await guarded(stage, tasks=1)
    engine, who = stage.engine, {"actor": "me", "reason": ""}
    await set_quota(engine, DEFAULT_TENANT_ID, Quota(retries=1), **who)
    async with engine.database.transaction() as held:
        await held.fetch("update holdfast.quota set retries_max = 2")
        quota = asyncio.ensure_future(set_quota(engine, DEFAULT_TENANT_ID, Quota(retries=3), **who))
        await stage.waits(quota)
    await quota
    async with engine.database.transaction() as held:
        await held.fetch("update holdfast.breaker set attempts = 7")
        breaker = asyncio.ensure_future(steer(engine, DEFAULT_TENANT_ID, ACTION, CircuitState.OPEN, **who))
        await stage.waits(breaker)
    await breaker
    told = await engine.database.fetch("select before from holdfast.audit order by seq desc limit 2")
    assert {"2 per minute" in row["before"] or '"attempts":7' in row["before"] for row in told} == {True}


@check
async def parts_of_a_quota_changed_at_once_are_both_kept(stage: Stage) -> None:
    """Also the first time, when there is no quota to lock."""
    who = {"actor": "me", "reason": ""}
    engine = stage.engine
    async with engine.database.transaction() as held:
        await change_quota_in(
            held, DEFAULT_TENANT_ID, lambda now: replace(now or Quota(), retries=3), queue=None, **who
        )
        late = asyncio.ensure_future(
            change_quota(engine, DEFAULT_TENANT_ID, lambda now: replace(now or Quota(), share=0.5), **who)
        )
        await stage.waits(late)
    assert await late
    assert [(one.retries, one.share) for one in await list_quotas(engine.database, DEFAULT_TENANT_ID)] == [(3, 0.5)]


@check
async def a_breaker_of_another_tenant_is_no_breaker_here(stage: Stage) -> None:
    theirs = await elsewhere(stage)
    for engine in (theirs.engine, stage.engine):
        await declare_guards(engine, engine.tenant_id, {ACTION: Guards(breaker=Breaker())})
    assert await stage.value("select count(distinct tenant_id) from holdfast.breaker") == 2


@check
async def guards_belong_to_their_tenant(stage: Stage) -> None:
    await guarded(stage, tasks=1)
    await stage.clock.advance("1s")
    await _another_shop(stage)
    await _a_held_retry_of_another_tenant(stage)
    due_at = await stage.value("select min(due_at) from holdfast.live where state = 'w'")
    for queue in ("default", None):
        assert await set_quota(stage.engine, DEFAULT_TENANT_ID, Quota(retries=5), queue=queue, actor="me", reason="")
    assert await stage.value(f"select count(*) from holdfast.audit where {OURS_SET} and before::text = 'null'") == 2
    await steer(stage.engine, DEFAULT_TENANT_ID, ACTION, CircuitState.OPEN, actor="me", reason="")
    for queue in ("default", None):
        assert await set_quota(stage.engine, DEFAULT_TENANT_ID, None, queue=queue, actor="me", reason="")
    await stage.harness.guard(ACTION)
    theirs = await show_breaker(stage.engine.database, OTHER_TENANT_ID, ACTION)
    assert theirs.state == "closed"
    assert [view.retries for view in await list_quotas(stage.engine.database, OTHER_TENANT_ID)] == [1, 1, 1]
    assert await stage.value("select min(due_at) from holdfast.live where state = 'w'") == due_at


async def failed_once(stage: Stage, *, tasks: int = 4, **options: float) -> list[str]:
    accepted = await stage.harness.enqueue_many(a_task(**{"base_backoff_secs": 0.0, **options}), [{}] * tasks)
    for one in accepted:
        await stage.harness.settle(await stage.harness.claim_task(one.task_id), DOWN)
    return [one.task_id for one in accepted]


@check
async def a_window_has_no_more_retries_than_allowed(stage: Stage) -> None:
    await stage.clock.freeze()
    await stage.harness.quota(Quota(retries=2))
    await failed_once(stage)
    assert await stage.harness.reconcile_once() == 2


@check
async def a_retry_without_delay_does_not_escape_a_quota(stage: Stage) -> None:
    await stage.harness.quota(Quota(retries=1))
    await failed_once(stage)
    assert await stage.harness.claim(4) == []


@check
async def a_released_task_waits_for_no_quota(stage: Stage) -> None:
    await stage.harness.quota(Quota(retries=1))
    task = await stage.harness.enqueue(a_task())
    await stage.harness.settle(await stage.harness.claim_task(task.task_id), Released())
    assert len(await stage.harness.claim(1)) == 1


@check
async def reconcilers_at_once_let_no_more_go_than_one(stage: Stage) -> None:
    await stage.clock.freeze()
    await stage.harness.quota(Quota(retries=2))
    await failed_once(stage)
    async with stage.engine.database.transaction() as session:
        assert (await promote(session, 2)).count == 2
        reconciling = asyncio.ensure_future(reconcile_once(stage.engine.database))
        await stage.waits(reconciling)
    assert (await reconciling).count == 0


@check
async def a_backoff_is_never_cut_short(stage: Stage) -> None:
    """The second failure waits longer than the first did: only the last one's time counts."""
    await stage.clock.freeze()
    (task_id,) = await failed_once(stage, tasks=1, base_backoff_secs=10.0)
    await stage.clock.advance("10s")
    await stage.harness.reconcile_once()
    await stage.harness.settle(await stage.harness.claim_task(task_id), DOWN)
    await stage.harness.quota(Quota(retries=1))
    await stage.clock.advance("19s")
    assert await stage.harness.reconcile_once() == 0


@check
async def hastening_does_not_wait_for_a_locked_task(stage: Stage) -> None:
    await stage.clock.freeze()
    await stage.harness.quota(Quota(retries=1))
    await failed_once(stage)
    await stage.harness.reconcile_once()
    async with stage.engine.database.transaction() as held:
        await held.fetch("select from holdfast.live for update")
        lifting = asyncio.ensure_future(stage.harness.quota(None))
        await stage.waits(lifting)
        assert lifting.done()
    await lifting


async def _refused(stage: Stage, statement: str) -> None:
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch(statement)


@check
async def the_schema_refuses_a_trial_of_a_closed_breaker(stage: Stage) -> None:
    await guarded(stage, tasks=1)
    await _refused(stage, "update holdfast.breaker set trial_at = now()")


@check
async def the_schema_refuses_passed_trials_of_a_closed_breaker(stage: Stage) -> None:
    await guarded(stage, tasks=1)
    await _refused(stage, "update holdfast.breaker set passed = 1")


@check
async def the_schema_refuses_a_breaker_open_for_ever_by_nobody(stage: Stage) -> None:
    await guarded(stage, tasks=1)
    await _refused(stage, "update holdfast.breaker set state = 'o'")


@check
async def the_schema_refuses_a_quota_of_two_things(stage: Stage) -> None:
    await guarded(stage, tasks=1)
    await _refused(
        stage,
        "insert into holdfast.quota (tenant_id, action, queue_id, retries_max, window_seconds)"
        " select 1, 'x', queue_id, 1, 60 from holdfast.queue",
    )


@check
async def the_schema_refuses_a_quota_without_a_limit(stage: Stage) -> None:
    await _refused(stage, "insert into holdfast.quota (tenant_id, window_seconds) values (1, 60)")
