"""Accepted means committed: once, all or nothing, in whose transaction it may be."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest
from tests.core.flows import a_flow
from tests.waiting import waits

from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.states import TaskState
from holdfast.engine.lifecycle.runs.start import RunOptions, start
from holdfast.engine.lifecycle.tasks.delete import delete_task
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.session import Session
from holdfast.store.statements import sql
from holdfast.testing.factories import a_completed_task, a_delayed_task, a_failed_task, a_failure, a_task


async def count(harness, table="live") -> int:
    return await harness.engine.database.fetchval(f"select count(*) from holdfast.{table}")


async def test_an_accepted_task_is_queued_with_its_input(harness):
    task = await harness.enqueue(a_task(input={"order": 7}, tags=("eu",), priority=2))
    seen = await harness.task(task.task_id)
    assert (seen.state, seen.attempt, seen.priority, seen.tags) == (TaskState.QUEUED, 0, 2, ["eu"])
    assert seen.input == b'{"order":7}'


async def test_ids_follow_the_order_of_the_inputs(harness):
    tasks = await harness.enqueue_many(a_task(), [{"number": number} for number in range(50)])
    inputs = [(await harness.task(task.task_id)).input for task in tasks[:3] + tasks[-1:]]
    assert inputs == [b'{"number":0}', b'{"number":1}', b'{"number":2}', b'{"number":49}']


async def test_a_delayed_task_cannot_be_claimed_before_its_time(harness, clock):
    await harness.enqueue(a_delayed_task(60))
    await clock.advance(seconds=59)
    assert await harness.reconcile_once() == 0
    assert await harness.claim(1) == []


async def test_a_delayed_task_is_claimed_when_it_is_due(harness, clock):
    task = await harness.enqueue(a_delayed_task(60))
    await clock.advance(seconds=60)
    assert await harness.reconcile_once() == 1
    assert (await harness.claim_one()).task_id == task.task_id


async def test_a_delayed_task_shows_when_it_is_due_and_no_retry(harness):
    task = await harness.enqueue(a_delayed_task(60))
    seen = await harness.task(task.task_id)
    assert (seen.state, seen.next_retry_at) == (TaskState.QUEUED, None)
    assert (seen.due_at - seen.created_at).total_seconds() == pytest.approx(60, abs=0.1)


@pytest.mark.parametrize("key", [None, "with a key"])
async def test_a_fraction_of_a_second_is_a_delay_too(harness, key):
    task = await harness.enqueue(a_delayed_task(0.9, key=key))
    assert await harness.claim(1) == []
    seen = await harness.task(task.task_id)
    assert (seen.due_at - seen.created_at).total_seconds() == pytest.approx(0.9, abs=0.01)


async def test_the_same_key_with_the_same_body_is_the_same_task(harness):
    first = await harness.enqueue(a_task(key="order-7", input={"a": 1, "b": 2}))
    again = await harness.enqueue(a_task(key="order-7", input={"b": 2, "a": 1}))
    assert (again.task_id, first.is_new, again.is_new) == (first.task_id, True, False)
    assert await count(harness) == 1


@pytest.mark.parametrize("other", [{"input": {"order": 8}}, {"action": "shop.refund"}])
async def test_the_same_key_with_another_body_is_a_conflict(harness, other):
    await harness.enqueue(a_task(key="order-7", input={"order": 7}))
    with pytest.raises(Conflict) as refused:
        await harness.enqueue(a_task(**{"key": "order-7", "input": {"order": 7}, **other}))
    assert refused.value.code == "idempotency_key_reused"
    assert "another input or another action" in refused.value.detail


async def test_a_key_stands_for_its_task_after_the_task_completed(harness):
    task_id = await a_completed_task(harness, key="order-7")
    again = await harness.enqueue(a_task(key="order-7"))
    assert (again.task_id, again.is_new) == (task_id, False)


async def test_twenty_callers_with_one_key_get_one_task(harness):
    tasks = await asyncio.gather(*(harness.enqueue(a_task(key="order-7")) for _ in range(20)))
    assert len({task.task_id for task in tasks}) == 1
    assert [task.is_new for task in tasks].count(True) == 1
    assert await count(harness) == await count(harness, "body") == 1


async def test_a_rolled_back_key_is_free_again(harness):
    with pytest.raises(ZeroDivisionError):
        async with harness.engine.database.transaction() as session:
            await harness.enqueue(a_task(key="order-7"), session=session)
            raise ZeroDivisionError
    assert (await harness.enqueue(a_task(key="order-7", input={"other": 1}))).is_new


async def test_a_caller_waits_for_another_transaction_with_its_key_and_takes_over_if_that_fails(harness):
    async with harness.engine.database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        await harness.enqueue(a_task(key="order-7"), session=session)
        waiting = asyncio.create_task(harness.enqueue(a_task(key="order-7")))
        assert await waits(harness.engine.database, waiting)
        await transaction.rollback()
    assert (await waiting).is_new


async def test_an_enqueue_in_the_callers_transaction_commits_with_it(harness):
    async with harness.engine.database.transaction() as session:
        task = await harness.enqueue(a_task(), session=session)
        with pytest.raises(NotFound):
            await harness.task(task.task_id)
    assert (await harness.task(task.task_id)).state is TaskState.QUEUED


async def test_an_enqueue_in_the_callers_transaction_rolls_back_with_it(harness):
    with pytest.raises(ZeroDivisionError):
        async with harness.engine.database.transaction() as session:
            await harness.enqueue_many(a_task(), [{}] * 3, session=session)
            raise ZeroDivisionError
    assert await count(harness) == await count(harness, "body") == 0


async def test_a_refused_input_leaves_nothing_of_its_batch(harness):
    with pytest.raises(Invalid):
        await harness.enqueue_many(a_task(), [{"fine": 1}, {"not": float("nan")}])
    assert await count(harness) == await count(harness, "body") == 0


async def test_lanes_and_policies_are_interned_once_by_callers_at_once(harness):
    await asyncio.gather(*(harness.enqueue(a_task(queue="mail", max_retries=7)) for _ in range(20)))
    assert await count(harness, "lane") == await count(harness, "policy") == 1


@pytest.mark.interposes
async def test_a_key_whose_task_is_deleted_meanwhile_stands_for_a_new_one(harness, engine):
    old = await a_failed_task(harness, key="order-7")

    with overtaken("enqueue_keyed", lambda: delete_task(engine, 1, int(old), actor="ann", reason="gone")):
        again = await harness.enqueue(a_task(key="order-7"))
    assert again.is_new and again.task_id != old
    assert not (await harness.enqueue(a_task(key="order-7"))).is_new


@pytest.mark.interposes
async def test_a_key_whose_run_is_deleted_meanwhile_stands_for_a_new_one(harness, engine):
    snapshot = await harness.runs.snapshot(a_flow("a>b"))
    asked = (engine.database, engine.catalog, snapshot, [b"{}"], RunOptions(key="order-7"))
    [old], _ = await start(*asked)
    lease = await harness.claim_one()
    await harness.settle(lease, Failed(a_failure()))
    with overtaken("claim_run_key", lambda: delete_task(engine, 1, int(lease.task_id), actor="ann", reason="gone")):
        [again], _ = await start(*asked)
    assert again != old and await harness.runs.state(str(again)) == "open"


@contextmanager
def overtaken(name, meanwhile):
    """Let something happen right after a statement that found nothing, once."""
    fetch, is_over = Session.fetch, []

    async def fetch_and_be_overtaken(self, statement, *given):
        rows = await fetch(self, statement, *given)
        if statement == sql(name) and not rows and not is_over:
            is_over.append(True)
            await meanwhile()
        return rows

    Session.fetch = fetch_and_be_overtaken
    try:
        yield
    finally:
        Session.fetch = fetch
    assert is_over
