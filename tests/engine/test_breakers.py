"""A breaker opens when too much fails, tries again with single tasks, and costs its tasks nothing."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.core.limits.breaker import Breaker, CircuitState
from holdfast.core.tasks.classify import Rule
from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, TimedOut
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import Conflict, NotFound
from holdfast.testing.factories import ACTION, a_failure, a_task

BREAKER = Breaker(attempts_min=4, trials=2)
DOWN = Failed(a_failure("connection reset by peer", type="ConnectionResetError"))
REFUSED = Failed(a_failure("validation: no such order"))
DONE = Completed(b"null")


async def guarded(harness, tasks=20, **options):
    await harness.guard(ACTION, breaker=options.pop("breaker", BREAKER))
    return await harness.enqueue_many(a_task(**options), [{}] * tasks)


async def end(harness, *outcomes, worker="first"):
    leases = await harness.claim(len(outcomes), worker=worker)
    assert len(leases) == len(outcomes)
    for lease, outcome in zip(leases, outcomes, strict=True):
        await harness.settle(lease, outcome)


async def state(harness) -> str:
    return (await harness.breaker(ACTION)).state


async def opened(harness, clock, **options):
    await clock.freeze()
    tasks = await guarded(harness, **options)
    await end(harness, DOWN, DOWN, DOWN, DOWN)
    assert await state(harness) == "open"
    return tasks


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([DOWN] * 3, "closed"),
        ([DOWN] * 4, "open"),
        ([DONE, DONE, DOWN, DOWN], "open"),
        ([DONE, DONE, DONE, DOWN], "closed"),
        ([TimedOut(a_failure("late"))] * 4, "open"),
        ([REFUSED] * 8, "closed"),
        ([REFUSED, REFUSED, REFUSED, DOWN], "closed"),
        ([Lost(a_failure("worker died"))] * 8, "closed"),
        ([Lost(a_failure("worker died"))] * 4 + [DOWN] * 3, "closed"),
    ],
)
async def test_it_opens_when_enough_attempts_failed_in_a_way_that_may_pass(harness, outcomes, verdict):
    await guarded(harness)
    await end(harness, *outcomes)
    assert await state(harness) == verdict


async def test_a_failure_counts_as_it_was_judged(harness):
    """A worker may have rules of its own: what it will not try again tells no breaker that it may pass."""
    await guarded(harness)
    strict = RetryPolicy(rules=(Rule(exception="ConnectionResetError", retry=False),))
    reports = [replace(report_of(one.claimed, DOWN), policy=strict) for one in await harness.claim(8)]
    async with harness.engine.database.transaction() as session:
        await settle(session, harness.engine.catalog, reports)
    assert await state(harness) == "closed"


async def test_workers_count_together(harness):
    await guarded(harness)
    for worker in ("first", "second", "third", "fourth"):
        await end(harness, DOWN, worker=worker)
    assert await state(harness) == "open"


async def test_old_failures_are_forgotten(harness, clock):
    await clock.freeze()
    await guarded(harness)
    await end(harness, DOWN, DOWN, DOWN)
    await clock.advance("70s")
    await end(harness, DOWN)
    assert await state(harness) == "closed"


async def test_an_open_breaker_lets_nothing_start_and_costs_its_tasks_nothing(harness, clock):
    tasks = await opened(harness, clock)
    assert await harness.claim(10) == []
    with pytest.raises(Conflict) as refused:
        await harness.claim_task(tasks[-1].task_id)
    assert refused.value.fields["reason"] == "breaker_open"
    assert await harness.reserve(tasks[-1].task_id) is None
    waiting = await harness.task(tasks[-1].task_id)
    assert (waiting.state, waiting.attempt, waiting.retry_count) == ("queued", 0, 0)


async def test_a_plan_made_before_it_opened_takes_nothing(harness):
    await guarded(harness)
    claimer = await harness._claimer("early")
    async with harness.engine.database.session() as session:
        await claimer._look(session, 0.0)
        await end(harness, DOWN, DOWN, DOWN, DOWN)
        assert await claimer._take(session, 5, {}) == []


async def test_other_actions_of_the_queue_go_on(harness, clock):
    await opened(harness, clock)
    other = await harness.enqueue(a_task(action="shop.mail"))
    assert [lease.task_id for lease in await harness.claim(10)] == [other.task_id]


async def test_after_a_while_single_trials_start(harness, clock):
    await opened(harness, clock)
    await clock.advance("30s")
    assert len(await harness.claim(10)) == 2
    assert await harness.claim(10, worker="second") == []
    assert await state(harness) == "half_open"


async def test_trials_that_are_made_fewer_leave_one_that_closes_it(harness, clock):
    await opened(harness, clock, breaker=Breaker(attempts_min=4, trials=3))
    await clock.advance("30s")
    await end(harness, DONE, DONE)
    await harness.guard(ACTION, breaker=Breaker(attempts_min=4, trials=1))
    assert await state(harness) == "half_open"
    await end(harness, DONE)
    assert await state(harness) == "closed"


async def test_claimers_at_once_start_no_more_trials_than_granted(harness, clock):
    await opened(harness, clock)
    await clock.advance("30s")
    claims = await asyncio.gather(*(harness.claim(3, worker=f"worker-{number}") for number in range(8)))
    assert sum(map(len, claims)) == 2


async def test_named_claims_and_reservations_are_trials_too(harness, clock):
    tasks = await opened(harness, clock)
    await clock.advance("30s")
    await harness.claim_task(tasks[-1].task_id)
    assert await harness.reserve(tasks[-2].task_id) is not None
    assert await harness.reserve(tasks[-3].task_id) is None
    with pytest.raises(Conflict):
        await harness.claim_task(tasks[-3].task_id)


async def test_trials_that_pass_close_it(harness, clock):
    await opened(harness, clock)
    await clock.advance("30s")
    await end(harness, DONE)
    assert await state(harness) == "half_open"
    await end(harness, DONE)
    assert await state(harness) == "closed"
    assert len(await harness.claim(10)) == 10


async def test_a_trial_that_fails_opens_it_again(harness, clock):
    await opened(harness, clock)
    await clock.advance("30s")
    await end(harness, DOWN)
    assert await state(harness) == "open"
    assert await harness.claim(10) == []
    await clock.advance("30s")
    assert len(await harness.claim(10)) == 2


@pytest.mark.parametrize("outcome", [Lost(a_failure("worker died")), Canceled()])
async def test_a_trial_without_a_verdict_makes_room_for_another(harness, clock, outcome):
    await opened(harness, clock)
    await clock.advance("30s")
    await end(harness, DONE)
    lease = await harness.claim_one()
    assert await harness.claim(1) == []
    await harness.settle(lease, outcome)
    assert len(await harness.claim(10)) == 1


async def test_a_trial_whose_worker_died_is_found_by_the_reaper(harness, clock):
    await opened(harness, clock)
    await clock.advance("30s")
    await harness.claim(2)
    await clock.advance("11s")
    assert await harness.reap_once() == 2
    assert len(await harness.claim(10)) == 2


async def test_an_attempt_from_before_it_opened_is_no_trial(harness, clock):
    await clock.freeze()
    await guarded(harness)
    slow = await harness.claim_one(worker="slow")
    await end(harness, DOWN, DOWN, DOWN, DOWN)
    await clock.advance("9s")
    await harness.heartbeat(slow)
    await clock.advance("9s")
    await harness.heartbeat(slow)
    await clock.advance("9s")
    await harness.heartbeat(slow)
    await clock.advance("3s")
    assert len(await harness.claim(10)) == 2
    await harness.settle(slow, DOWN)
    assert await state(harness) == "half_open"


async def test_a_report_repeated_is_counted_once(harness):
    await guarded(harness)
    leases = await harness.claim(3)
    for lease in leases * 3:
        await harness.settle(lease, DOWN)
    found = await harness.breaker(ACTION)
    assert (found.state, found.counted_attempts, found.counted_failures) == ("closed", 3, 3)


async def test_it_says_why_it_opened(harness, clock):
    await opened(harness, clock)
    found = await harness.breaker(ACTION)
    assert (found.attempts, found.failures, found.cause) == (4, 4, "connection_error (ConnectionResetError)")


async def test_held_open_by_hand_it_is_not_tried_until_somebody_says_so(harness, clock):
    await clock.freeze()
    await guarded(harness)
    await harness.steer(ACTION, CircuitState.OPEN, actor="ops", reason="the bank is down")
    await clock.advance("1h")
    assert await harness.claim(10) == []
    reset = await harness.steer(ACTION, CircuitState.HALF_OPEN)
    assert (reset.state, len(await harness.claim(10))) == ("half_open", 2)
    closed = await harness.steer(ACTION, CircuitState.CLOSED)
    assert (closed.state, len(await harness.claim(10))) == ("closed", 10)


async def test_a_reset_forgets_failures_and_leaves_a_closed_breaker_closed(harness):
    await guarded(harness)
    await end(harness, DOWN, DOWN, DOWN)
    found = await harness.steer(ACTION, CircuitState.HALF_OPEN)
    assert (found.state, found.counted_attempts) == ("closed", 0)


async def test_who_steered_it_and_why_is_on_record(harness):
    await guarded(harness)
    await harness.steer(ACTION, CircuitState.OPEN, actor="ops", reason="the bank is down")
    detail = await harness.engine.database.fetchval(
        "select detail::text from holdfast.event where kind = 'breaker.opened'"
    )
    assert '"actor": "ops"' in detail and '"reason": "the bank is down"' in detail


async def test_declared_again_it_stays_open(harness, clock):
    await opened(harness, clock)
    await harness.guard(ACTION, breaker=BREAKER)
    await harness.guard(ACTION, breaker=Breaker(attempts_min=5, trials=1))
    found = await harness.breaker(ACTION)
    assert (found.state, found.attempts_min, found.trials) == ("open", 5, 1)


async def test_declared_no_more_it_holds_nothing_back(harness, clock):
    await opened(harness, clock)
    await harness.guard(ACTION)
    with pytest.raises(NotFound):
        await harness.breaker(ACTION)
    assert len(await harness.claim(10)) == 10
    assert await harness.engine.database.fetchval("select count(*) from holdfast.tally") == 0


async def test_counting_takes_a_bounded_number_of_rows(harness, clock):
    await clock.freeze()
    await guarded(harness, tasks=60, breaker=Breaker(attempts_min=1000))
    for _ in range(30):
        await end(harness, DOWN, DONE)
        await clock.advance("7s")
    assert await harness.engine.database.fetchval("select count(*) from holdfast.tally") <= 144


async def test_work_without_a_breaker_is_settled_by_one_statement_as_before(harness):
    await guarded(harness, tasks=1)
    await harness.enqueue(a_task(action="shop.mail"))
    leases = await harness.claim(2)
    statements = {lease.claimed.lane_id in harness.engine.catalog.guarded: [] for lease in leases}
    for lease in leases:
        async with harness.engine.database.transaction() as session:
            noted = statements[lease.claimed.lane_id in harness.engine.catalog.guarded]
            await settle(Noting(session, noted), harness.engine.catalog, [report_of(lease.claimed, DONE)])
    assert (len(statements[False]), len(statements[True])) == (1, 2)


class Noting:
    """A session that notes what passes through it."""

    def __init__(self, session, statements):
        self._session, self._statements = session, statements

    async def fetch(self, statement, *arguments):
        self._statements.append(statement)
        return await self._session.fetch(statement, *arguments)
