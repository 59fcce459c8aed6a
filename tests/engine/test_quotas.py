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


async def failed_once(dispatcher, tasks=10, outcome=DOWN, **options):
    """Tasks whose first attempt failed and whose retry is due."""
    accepted = await dispatcher.enqueue_many(a_task(base_backoff_secs=0.0, **options), [{}] * tasks)
    leases = await dispatcher.claim(tasks)
    assert len(leases) == tasks
    for lease in leases:
        await dispatcher.settle(lease, outcome)
    return [one.task_id for one in accepted]


async def queue_with(dispatcher, quota, *, queue="default", **options):
    await dispatcher.enqueue(a_task(queue=queue, **options))
    (lease,) = await dispatcher.claim(1)
    await dispatcher.settle(lease, Completed(b"null"))
    await dispatcher.quota(quota, queue=queue)


async def queued(dispatcher) -> int:
    return await dispatcher.engine.database.fetchval("select count(*) from holdfast.live where state = 'q'")


async def test_a_window_has_no_more_retries_than_allowed(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=3))
    await failed_once(dispatcher)
    assert (await dispatcher.reconcile_once(), await queued(dispatcher)) == (3, 3)
    await clock.advance("59s")
    assert await dispatcher.reconcile_once() == 0


async def test_room_comes_back_when_the_window_has_passed(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=3))
    await failed_once(dispatcher)
    promoted = []
    for _ in range(60):
        promoted.append(await dispatcher.reconcile_once())
        await clock.advance("10s")
    assert sum(promoted) == 10
    assert all(sum(promoted[start : start + 6]) <= 3 for start in range(60))


async def test_reconcilers_at_once_let_no_more_go_than_one(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=3))
    await failed_once(dispatcher, tasks=30)
    database = dispatcher.engine.database
    passes = await asyncio.gather(*(reconcile_once(database, limit=5) for _ in range(8)))
    assert sum(one.count for one in passes) == 3


async def test_a_retry_without_delay_does_not_escape(dispatcher):
    await queue_with(dispatcher, Quota(retries=1))
    (task_id,) = await failed_once(dispatcher, tasks=1)
    assert (await dispatcher.task(task_id)).state == "failed"
    assert await dispatcher.claim(1) == []
    assert await dispatcher.reconcile_once() == 1


async def test_a_lost_attempt_is_a_retry_too_and_a_released_one_is_not(dispatcher):
    await queue_with(dispatcher, Quota(retries=1))
    await failed_once(dispatcher, tasks=3, outcome=Lost(a_failure("worker died")))
    assert await dispatcher.reconcile_once() == 1
    (lease,) = await dispatcher.claim(1)
    await dispatcher.settle(lease, Released())
    assert len(await dispatcher.claim(1)) == 1


async def test_held_back_tasks_burn_nothing(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=1))
    task_ids = await failed_once(dispatcher, tasks=3)
    for _ in range(5):
        await dispatcher.reconcile_once()
        await clock.advance("3s")
    tasks = [await dispatcher.task(task_id) for task_id in task_ids]
    assert [(task.attempt, task.retry_count) for task in tasks] == [(1, 1)] * 3


async def test_delayed_tasks_and_other_queues_do_not_wait_behind_it(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=1))
    await failed_once(dispatcher, tasks=5)
    await dispatcher.enqueue(a_task(delay_seconds=1.0))
    await failed_once(dispatcher, tasks=1, queue="other", action="shop.other")
    await clock.advance("2s")
    assert await dispatcher.reconcile_once() == 1 + 1
    assert await queued(dispatcher) == 1 + 1 + 1


async def test_what_is_held_back_does_not_fill_every_pass(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=1))
    await failed_once(dispatcher, tasks=20)
    database = dispatcher.engine.database
    looked = [await reconcile_once(database, limit=5) for _ in range(6)]
    assert [one.count + one.held for one in looked] == [5, 5, 5, 5, 0, 0]


async def test_a_quota_of_an_action_covers_it_in_every_queue(dispatcher, clock):
    await clock.freeze()
    await dispatcher.guard(ACTION, quota=Quota(retries=2))
    await failed_once(dispatcher, tasks=3, queue="one")
    await failed_once(dispatcher, tasks=3, queue="two")
    await failed_once(dispatcher, tasks=3, queue="one", action="shop.other")
    await dispatcher.reconcile_once()
    assert await queued(dispatcher) == 2 + 3


async def test_the_quota_of_the_tenant_covers_everything(dispatcher, clock):
    await clock.freeze()
    await dispatcher.quota(Quota(retries=4))
    await failed_once(dispatcher, tasks=3, queue="one")
    await failed_once(dispatcher, tasks=3, queue="two", action="shop.other")
    assert await dispatcher.reconcile_once() == 4


async def test_every_quota_over_a_task_must_have_room(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=2))
    await dispatcher.guard(ACTION, quota=Quota(retries=5))
    await dispatcher.quota(Quota(retries=7))
    await failed_once(dispatcher)
    assert await dispatcher.reconcile_once() == 2
    used = {view.scope: view.used for view in await list_quotas(dispatcher.engine.database, DEFAULT_TENANT_ID)}
    assert used == {"action": 2, "queue": 2, "tenant": 2}


async def test_a_share_of_the_first_attempts_may_be_retried(dispatcher, clock):
    await clock.freeze()
    await dispatcher.guard(ACTION, quota=Quota(share=0.2))
    await failed_once(dispatcher, tasks=50)
    assert await dispatcher.reconcile_once() == 10


async def test_a_share_counts_first_attempts_only(dispatcher, clock):
    await clock.freeze()
    await dispatcher.guard(ACTION, quota=Quota(share=0.2))
    await failed_once(dispatcher, tasks=10)
    await dispatcher.reconcile_once()
    for lease in await dispatcher.claim(10):
        await dispatcher.settle(lease, DOWN)
    (view,) = await list_quotas(dispatcher.engine.database, DEFAULT_TENANT_ID)
    assert (view.first_attempts, view.allowed, view.used) == (10, 2, 2)


async def test_a_share_counts_first_attempts_that_were_named_or_launched(dispatcher, clock, engine):
    await clock.freeze()
    await dispatcher.guard(ACTION, quota=Quota(share=1.0))
    tasks = await dispatcher.enqueue_many(a_task(base_backoff_secs=0.0), [{}] * 2)
    named = await dispatcher.claim_task(tasks[0].task_id)
    launched = await dispatcher.attach(await dispatcher.reserve(tasks[1].task_id))
    for lease in (named, launched):
        await dispatcher.settle(lease, DOWN)
    assert await dispatcher.reconcile_once() == 2
    await dispatcher.claim_task(tasks[0].task_id)
    await dispatcher.reserve(tasks[1].task_id)
    (view,) = await list_quotas(engine.database, DEFAULT_TENANT_ID)
    assert view.first_attempts == 2


async def test_a_lone_failure_is_retried_whatever_the_share(dispatcher, clock):
    await clock.freeze()
    await dispatcher.guard(ACTION, quota=Quota(share=0.01))
    await failed_once(dispatcher, tasks=1)
    assert await dispatcher.reconcile_once() == 1


@pytest.mark.parametrize("quota", [None, Quota(retries=100)])
async def test_a_lifted_or_raised_quota_lets_go_what_it_held_back(dispatcher, clock, quota):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=1))
    await failed_once(dispatcher)
    await dispatcher.reconcile_once()
    assert await dispatcher.quota(quota, queue="default", reason="the bank is back")
    assert (await dispatcher.reconcile_once(), await queued(dispatcher)) == (9, 10)


async def test_a_changed_quota_does_not_cut_a_backoff_short(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=1))
    await dispatcher.enqueue(a_task(base_backoff_secs=30.0))
    (lease,) = await dispatcher.claim(1)
    await dispatcher.settle(lease, DOWN)
    await dispatcher.quota(None, queue="default")
    await clock.advance("29s")
    assert await dispatcher.reconcile_once() == 0


async def test_a_retry_asked_for_by_a_person_asks_no_quota(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=1))
    _, second = await failed_once(dispatcher, tasks=2)
    await dispatcher.reconcile_once()
    assert await dispatcher.retry(second, reason="I looked at it") == 2
    assert await queued(dispatcher) == 2


async def test_who_set_it_and_why_is_on_record(dispatcher):
    await queue_with(dispatcher, Quota(retries=5))
    await dispatcher.quota(Quota(retries=6), queue="default", reason="a calmer night")
    (view,) = await list_quotas(dispatcher.engine.database, DEFAULT_TENANT_ID)
    assert (view.scope, view.name, view.retries, view.actor, view.reason) == (
        "queue",
        "default",
        6,
        "test",
        "a calmer night",
    )
    kinds = await dispatcher.engine.database.fetch("select kind from holdfast.event where kind like 'quota.%'")
    assert [row["kind"] for row in kinds] == ["quota.set", "quota.set"]


async def test_set_again_it_keeps_what_it_counted(dispatcher, clock):
    await clock.freeze()
    await queue_with(dispatcher, Quota(retries=3))
    await failed_once(dispatcher)
    await dispatcher.reconcile_once()
    assert not await dispatcher.quota(Quota(retries=3), queue="default")
    assert await dispatcher.reconcile_once() == 0
