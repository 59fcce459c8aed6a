"""A quota bounds retries, whoever counts, and what it holds back is neither lost nor charged."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Completed, Failed, Lost, Released
from holdfast.engine.lifecycle.tasks.reconcile import reconcile_once
from holdfast.engine.limits.quotas import list_quotas
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.factories import ACTION, a_failure, a_task

DOWN = Failed(a_failure("connection reset by peer"))


async def failed_once(harness, tasks=10, outcome=DOWN, **options):
    """Tasks whose first attempt failed and whose retry is due."""
    accepted = await harness.enqueue_many(a_task(base_backoff_secs=0.0, **options), [{}] * tasks)
    leases = await harness.claim(tasks)
    assert len(leases) == tasks
    for lease in leases:
        await harness.settle(lease, outcome)
    return [one.task_id for one in accepted]


async def queue_with(harness, quota, *, queue="default", **options):
    await harness.enqueue(a_task(queue=queue, **options))
    (lease,) = await harness.claim(1)
    await harness.settle(lease, Completed(b"null"))
    await harness.quota(quota, queue=queue)


async def queued(harness) -> int:
    return await harness.engine.database.fetchval("select count(*) from holdfast.live where state = 'q'")


async def test_a_window_has_no_more_retries_than_allowed(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=3))
    await failed_once(harness)
    assert (await harness.reconcile_once(), await queued(harness)) == (3, 3)
    await clock.advance("59s")
    assert await harness.reconcile_once() == 0


async def test_room_comes_back_when_the_window_has_passed(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=3))
    await failed_once(harness)
    promoted = []
    for _ in range(60):
        promoted.append(await harness.reconcile_once())
        await clock.advance("10s")
    assert sum(promoted) == 10
    assert all(sum(promoted[start : start + 6]) <= 3 for start in range(60))


async def test_reconcilers_at_once_let_no_more_go_than_one(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=3))
    await failed_once(harness, tasks=30)
    database = harness.engine.database
    passes = await asyncio.gather(*(reconcile_once(database, limit=5) for _ in range(8)))
    assert sum(one.count for one in passes) == 3


async def test_a_retry_without_delay_does_not_escape(harness):
    await queue_with(harness, Quota(retries=1))
    (task_id,) = await failed_once(harness, tasks=1)
    assert (await harness.task(task_id)).state == "failed"
    assert await harness.claim(1) == []
    assert await harness.reconcile_once() == 1


async def test_a_lost_attempt_is_a_retry_too_and_a_released_one_is_not(harness):
    await queue_with(harness, Quota(retries=1))
    await failed_once(harness, tasks=3, outcome=Lost(a_failure("worker died")))
    assert await harness.reconcile_once() == 1
    (lease,) = await harness.claim(1)
    await harness.settle(lease, Released())
    assert len(await harness.claim(1)) == 1


async def test_held_back_tasks_burn_nothing(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=1))
    task_ids = await failed_once(harness, tasks=3)
    for _ in range(5):
        await harness.reconcile_once()
        await clock.advance("3s")
    tasks = [await harness.task(task_id) for task_id in task_ids]
    assert [(task.attempt, task.retry_count) for task in tasks] == [(1, 1)] * 3


async def test_delayed_tasks_and_other_queues_do_not_wait_behind_it(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=1))
    await failed_once(harness, tasks=5)
    await harness.enqueue(a_task(delay_seconds=1.0))
    await failed_once(harness, tasks=1, queue="other", action="shop.other")
    await clock.advance("2s")
    assert await harness.reconcile_once() == 1 + 1
    assert await queued(harness) == 1 + 1 + 1


async def test_what_is_held_back_does_not_fill_every_pass(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=1))
    await failed_once(harness, tasks=20)
    database = harness.engine.database
    looked = [await reconcile_once(database, limit=5) for _ in range(6)]
    assert [one.count + one.held for one in looked] == [5, 5, 5, 5, 0, 0]


async def test_a_quota_of_an_action_covers_it_in_every_queue(harness, clock):
    await clock.freeze()
    await harness.guard(ACTION, quota=Quota(retries=2))
    await failed_once(harness, tasks=3, queue="one")
    await failed_once(harness, tasks=3, queue="two")
    await failed_once(harness, tasks=3, queue="one", action="shop.other")
    await harness.reconcile_once()
    assert await queued(harness) == 2 + 3


async def test_the_quota_of_the_tenant_covers_everything(harness, clock):
    await clock.freeze()
    await harness.quota(Quota(retries=4))
    await failed_once(harness, tasks=3, queue="one")
    await failed_once(harness, tasks=3, queue="two", action="shop.other")
    assert await harness.reconcile_once() == 4


async def test_every_quota_over_a_task_must_have_room(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=2))
    await harness.guard(ACTION, quota=Quota(retries=5))
    await harness.quota(Quota(retries=7))
    await failed_once(harness)
    assert await harness.reconcile_once() == 2
    used = {view.scope: view.used for view in await list_quotas(harness.engine.database, DEFAULT_TENANT_ID)}
    assert used == {"action": 2, "queue": 2, "tenant": 2}


async def test_a_share_of_the_first_attempts_may_be_retried(harness, clock):
    await clock.freeze()
    await harness.guard(ACTION, quota=Quota(share=0.2))
    await failed_once(harness, tasks=50)
    assert await harness.reconcile_once() == 10


async def test_a_share_counts_first_attempts_only(harness, clock):
    await clock.freeze()
    await harness.guard(ACTION, quota=Quota(share=0.2))
    await failed_once(harness, tasks=10)
    await harness.reconcile_once()
    for lease in await harness.claim(10):
        await harness.settle(lease, DOWN)
    (view,) = await list_quotas(harness.engine.database, DEFAULT_TENANT_ID)
    assert (view.first_attempts, view.allowed, view.used) == (10, 2, 2)


async def test_a_share_counts_first_attempts_that_were_named_or_launched(harness, clock, engine):
    await clock.freeze()
    await harness.guard(ACTION, quota=Quota(share=1.0))
    tasks = await harness.enqueue_many(a_task(base_backoff_secs=0.0), [{}] * 2)
    named = await harness.claim_task(tasks[0].task_id)
    launched = await harness.attach(await harness.reserve(tasks[1].task_id))
    for lease in (named, launched):
        await harness.settle(lease, DOWN)
    assert await harness.reconcile_once() == 2
    await harness.claim_task(tasks[0].task_id)
    await harness.reserve(tasks[1].task_id)
    (view,) = await list_quotas(engine.database, DEFAULT_TENANT_ID)
    assert view.first_attempts == 2


async def test_a_lone_failure_is_retried_whatever_the_share(harness, clock):
    await clock.freeze()
    await harness.guard(ACTION, quota=Quota(share=0.01))
    await failed_once(harness, tasks=1)
    assert await harness.reconcile_once() == 1


@pytest.mark.parametrize("quota", [None, Quota(retries=100)])
async def test_a_lifted_or_raised_quota_lets_go_what_it_held_back(harness, clock, quota):
    await clock.freeze()
    await queue_with(harness, Quota(retries=1))
    await failed_once(harness)
    await harness.reconcile_once()
    assert await harness.quota(quota, queue="default", reason="the bank is back")
    assert (await harness.reconcile_once(), await queued(harness)) == (9, 10)


async def test_a_changed_quota_does_not_cut_a_backoff_short(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=1))
    await harness.enqueue(a_task(base_backoff_secs=30.0))
    (lease,) = await harness.claim(1)
    await harness.settle(lease, DOWN)
    await harness.quota(None, queue="default")
    await clock.advance("29s")
    assert await harness.reconcile_once() == 0


async def test_a_retry_asked_for_by_a_person_asks_no_quota(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=1))
    _, second = await failed_once(harness, tasks=2)
    await harness.reconcile_once()
    assert await harness.retry(second, reason="I looked at it") == 2
    assert await queued(harness) == 2


async def test_who_set_it_and_why_is_on_record(harness):
    await queue_with(harness, Quota(retries=5))
    await harness.quota(Quota(retries=6), queue="default", reason="a calmer night")
    (view,) = await list_quotas(harness.engine.database, DEFAULT_TENANT_ID)
    assert (view.scope, view.name, view.retries, view.actor, view.reason) == (
        "queue",
        "default",
        6,
        "test",
        "a calmer night",
    )
    kinds = await harness.engine.database.fetch("select kind from holdfast.event where kind like 'quota.%'")
    assert [row["kind"] for row in kinds] == ["quota.set", "quota.set"]


async def test_set_again_it_keeps_what_it_counted(harness, clock):
    await clock.freeze()
    await queue_with(harness, Quota(retries=3))
    await failed_once(harness)
    await harness.reconcile_once()
    assert not await harness.quota(Quota(retries=3), queue="default")
    assert await harness.reconcile_once() == 0
