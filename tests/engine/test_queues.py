"""Queues: paused, resumed and limited, and what their counts say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.engine.limits import queues
from holdfast.engine.queries import counts
from holdfast.errors import Invalid, NotFound
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.factories import (
    a_canceled_task,
    a_completed_task,
    a_delayed_task,
    a_failed_task,
    a_retrying_task,
    a_running_task,
    a_task,
)

WHO = {"actor": "anna", "reason": "smtp is down"}


async def limit(engine, *, running=None, per_second=None):
    await queues.limit(engine, DEFAULT_TENANT_ID, "mail", max_running=running, starts_per_second=per_second, **WHO)


async def test_counts_by_state(harness, engine):
    await harness.enqueue_many(a_task(queue="mail"), [{}] * 3)
    await harness.enqueue(a_delayed_task(queue="mail"))
    for make in (a_running_task, a_retrying_task, a_completed_task, a_completed_task, a_failed_task, a_canceled_task):
        await make(harness, queue="mail")
    (view,) = await queues.list_queues(engine.database, DEFAULT_TENANT_ID)
    assert (view.name, view.queued, view.delayed, view.running, view.retrying) == ("mail", 4, 1, 1, 1)
    assert (view.completed, view.failed, view.canceled, view.blocked) == (2, 1, 1, 0)
    assert (view.partial, view.paused, view.workers) == ((), False, 1)


async def test_history_is_counted_to_a_bound_and_says_so(harness, engine, monkeypatch):
    for _ in range(3):
        await a_completed_task(harness, queue="mail")
    monkeypatch.setattr(queues, "LISTED", replace(counts.LISTED, events=4))
    (view,) = await queues.list_queues(engine.database, DEFAULT_TENANT_ID)
    assert (view.completed, view.partial) == (2, ("completed",))
    (view,) = await queues.list_queues(engine.database, DEFAULT_TENANT_ID, with_history=False)
    assert (view.completed, view.partial) == (None, ())


async def test_a_paused_queue_hands_out_nothing_until_resumed(harness, engine):
    await harness.enqueue(a_task(queue="mail"))
    assert await queues.pause(engine, DEFAULT_TENANT_ID, "mail", **WHO)
    assert not await queues.pause(engine, DEFAULT_TENANT_ID, "mail", actor="bob", reason="")
    (view,) = await queues.list_queues(engine.database, DEFAULT_TENANT_ID)
    assert (view.paused, view.paused_by, view.paused_reason) == (True, "anna", "smtp is down")
    assert await harness.claim(1) == []
    assert await queues.resume(engine, DEFAULT_TENANT_ID, "mail", **WHO)
    assert not await queues.resume(engine, DEFAULT_TENANT_ID, "mail", **WHO)
    assert len(await harness.claim(1)) == 1


async def test_a_limit_on_running_tasks_holds_and_can_be_lifted(harness, engine):
    await harness.enqueue_many(a_task(queue="mail"), [{}] * 5)
    await limit(engine, running=2)
    assert len(await harness.claim(5)) == 2
    assert await harness.claim(5) == []
    await limit(engine)
    assert len(await harness.claim(5)) == 3


async def test_a_limit_on_starts_begins_with_a_full_bucket_and_refills(harness, engine, clock):
    await harness.enqueue_many(a_task(queue="mail"), [{}] * 5)
    await limit(engine, per_second=2)
    assert len(await harness.claim(5)) == 2
    assert await harness.claim(5) == []
    await clock.advance(seconds=1)
    assert len(await harness.claim(5)) == 2


async def test_a_limit_below_one_start_per_second_lets_the_first_through(harness, engine):
    await harness.enqueue_many(a_task(queue="mail"), [{}] * 2)
    await limit(engine, per_second=0.001)
    assert len(await harness.claim(2)) == 1


@pytest.mark.parametrize("bad", [{"running": 0}, {"running": -1}, {"per_second": 0.0}, {"per_second": -1.0}])
async def test_a_limit_nothing_could_pass_is_refused(harness, engine, bad):
    await harness.enqueue(a_task(queue="mail"))
    with pytest.raises(Invalid):
        await limit(engine, **bad)


async def test_an_unknown_queue_is_named_with_the_nearest(harness, engine):
    await harness.enqueue(a_task(queue="mail"))
    with pytest.raises(NotFound, match="Did you mean mail"):
        await queues.pause(engine, DEFAULT_TENANT_ID, "mial", **WHO)


async def test_changes_are_recorded_as_events(harness, engine):
    await harness.enqueue(a_task(queue="mail"))
    await queues.pause(engine, DEFAULT_TENANT_ID, "mail", **WHO)
    await queues.resume(engine, DEFAULT_TENANT_ID, "mail", **WHO)
    await limit(engine, running=3)
    rows = await engine.database.fetch("select kind, detail->>'actor' as actor from holdfast.event order by xid, seq")
    assert [tuple(row) for row in rows] == [
        ("queue.paused", "anna"),
        ("queue.resumed", "anna"),
        ("queue.limited", "anna"),
    ]
