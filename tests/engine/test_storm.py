"""A storm of failures costs a bounded number of attempts, however many tasks fail and however often they may."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.testing.factories import ACTION, a_failure, a_task

TASKS, SLOTS, STEP_SECONDS, STEPS = 1_500, 100, 5.0, 48
DOWN = Failed(a_failure("connection refused"))


async def storm(harness, clock, outcome_at=lambda _step: DOWN) -> tuple[Counter, Counter]:
    """Workers with so many slots for some minutes of the test's clock; attempts and retries begun in each step."""
    await clock.freeze()
    await harness.enqueue_many(a_task(max_retries=100), [{}] * TASKS)
    attempts, retries = Counter(), Counter()
    for step in range(STEPS):
        while leases := await harness.claim(SLOTS):
            attempts[step] += len(leases)
            retries[step] += sum(lease.attempt > 1 for lease in leases)
            async with harness.engine.database.transaction() as session:
                reports = [report_of(lease.claimed, outcome_at(step)) for lease in leases]
                await settle(session, harness.engine.catalog, reports)
        await harness.reconcile_once()
        await clock.advance(seconds=STEP_SECONDS)
    return attempts, retries


@pytest.mark.slow("it moves many rows or waits for real time; test_a_quota_bounds_the_retries_of_every_window is fast")
async def test_without_anything_in_its_way_a_storm_grows_with_its_tasks(harness, clock):
    attempts, _ = await storm(harness, clock)
    assert attempts.total() > 4 * TASKS


async def test_a_quota_bounds_the_retries_of_every_window(harness, clock):
    await harness.quota(Quota(retries=30))
    attempts, retries = await storm(harness, clock)
    steps_per_window = int(60 / STEP_SECONDS)
    assert max(sum(retries[s + n] for n in range(steps_per_window)) for s in range(STEPS)) <= 30
    assert 30 < retries.total() <= 30 * (STEPS * STEP_SECONDS / 60 + 1)
    assert attempts.total() == TASKS + retries.total()


async def test_a_breaker_bounds_all_attempts_to_one_round_and_single_trials(harness, clock):
    await harness.guard(ACTION, breaker=Breaker(trials=3, open_seconds=30))
    attempts, _ = await storm(harness, clock)
    assert attempts[0] == SLOTS
    later = [attempts[step] for step in range(1, STEPS)]
    assert max(later) <= 3
    assert sum(later) <= 3 * (STEPS * STEP_SECONDS / 30)


async def test_when_the_cause_is_mended_everything_completes(harness, clock):
    await harness.guard(ACTION, breaker=Breaker(trials=3, open_seconds=30), quota=Quota(retries=60))
    mended = STEPS // 3
    attempts, _ = await storm(harness, clock, lambda step: DOWN if step < mended else Completed(b"null"))
    left = await harness.engine.database.fetchval("select count(*) from holdfast.live where state = 'q'")
    held = await harness.engine.database.fetchval("select count(*) from holdfast.live where state = 'w'")
    assert (left, held) == (0, 0)
    assert attempts.total() < TASKS + 3 * SLOTS
