"""Counts of queues are what there is: before and after any pass, whatever ran again, was deleted or came late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.flows import a_diamond, a_flow, a_node, an_order_edge

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind, TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.delete import delete_task
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.limits import queues
from holdfast.engine.maintenance.retention import begin_today, retain_once
from holdfast.engine.queries import counts
from holdfast.errors import NotFound
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing import factories as a

WHO = {"actor": "ann", "reason": "over"}


@pytest.fixture
def listed(engine):
    """The counts of the queues, as `queue list` shows them."""

    async def read(name="default"):
        views = await queues.list_queues(engine.database, DEFAULT_TENANT_ID)
        return next(view for view in views if view.name == name)

    return read


@pytest.fixture
def counted(engine, listed, monkeypatch):
    """How many completed, which is the same before and after a pass that counts them."""
    monkeypatch.setattr(counts, "PASS_EVENTS_MIN", 0)

    async def read():
        before = (await listed()).completed
        await counts.count_once(engine.database)
        assert (await listed()).completed == before
        return before

    return read


async def finish(harness, outcome=None):
    for lease in await harness.claim(10):
        await harness.settle(lease, outcome or Completed(b"{}"))


async def test_completions_are_counted_with_and_without_a_pass(harness, counted, listed):
    await harness.enqueue_many(a.a_task(), [{}] * 30)
    for done in (10, 20, 30):
        await finish(harness)
        assert await counted() == done
    assert (await listed()).partial == ()


async def test_a_pass_waits_until_it_is_worth_its_while(harness, engine, monkeypatch):
    await a.a_completed_task(harness)
    assert not await counts.count_once(engine.database)
    monkeypatch.setattr(counts, "PASS_EVENTS_MIN", 2)
    assert await counts.count_once(engine.database)
    assert not await counts.count_once(engine.database)


async def test_what_commits_behind_a_pass_is_counted_once(harness, engine, counted):
    await harness.enqueue_many(a.a_task(), [{}] * 2)
    late, early = await harness.claim(2)
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(late.claimed, Completed(b"{}"))])
        await harness.settle(early, Completed(b"{}"))
        assert await counted() == 1
    assert await counted() == 2
    assert await counted() == 2


async def test_two_passes_at_once_count_once(harness, engine, counted):
    await a.a_completed_task(harness)
    async with engine.database.transaction() as session:
        assert await session.fetchval("select holdfast.count_completed(false)")
        assert not await counts.count_once(engine.database)
    assert await counted() == 1


@pytest.mark.parametrize("is_counted", [False, True])
async def test_a_node_that_runs_again_counts_when_it_completes_again(harness, engine, counted, is_counted):
    run_id = await harness.runs.start(a_flow("a>b", b=TriggerRule.ALL_DONE))
    await finish(harness, Failed(a.a_failure()))
    await finish(harness)
    if is_counted:
        assert await counted() == 1
    assert await harness.runs.retry(run_id) == ["a", "b"]
    assert await counted() == 0
    await finish(harness)
    assert await counted() == 1
    await finish(harness)
    assert await counted() == 2


@pytest.mark.parametrize("is_counted", [False, True])
async def test_what_is_deleted_counts_no_more(harness, engine, counted, is_counted):
    await a.a_completed_task(harness)
    await harness.runs.start(a_flow("a>b"))
    await finish(harness)
    failed = await harness.claim_one()
    await harness.settle(failed, Failed(a.a_failure()))
    if is_counted:
        assert await counted() == 2
    await delete_task(engine, DEFAULT_TENANT_ID, int(failed.task_id), **WHO)
    assert await counted() == 1


async def test_what_history_forgets_counts_no_more(harness, engine, counted, clock):
    await a.a_completed_task(harness)
    assert await counted() == 1
    await clock.advance("1d")
    await begin_today(engine.database)
    await a.a_completed_task(harness)
    assert await counted() == 2
    await clock.advance("3d")
    assert (await retain_once(engine.database, days=2.5)).dropped >= 1
    assert await counted() == 1


async def test_a_recount_finds_the_same(harness, engine, counted):
    await a.a_completed_task(harness)
    await harness.runs.start(a_diamond())
    for _ in range(2):
        await finish(harness)
    assert await counted() == 4
    await engine.database.fetch("select holdfast.recount_completed()")
    assert await counted() == 4


async def test_blocked_nodes_of_one_queue_are_counted_however_large_the_run(harness, listed, monkeypatch):
    monkeypatch.setattr(queues, "LISTED", replace(counts.LISTED, nodes=1))
    await harness.runs.start(a_diamond())
    assert ((await listed()).blocked, (await listed()).partial) == (3, ())


async def test_blocked_nodes_among_others_are_counted_by_their_lanes_or_said_to_be_left_out(
    harness, listed, monkeypatch
):
    nodes = (
        a_node("a"),
        a_node("wait", "event.paid", kind=NodeKind.WAIT, timeout_seconds=60),
        a_node("b"),
        a_node("c"),
    )
    edges = tuple(map(an_order_edge, ("a>b", "wait>b", "b>c")))
    await harness.runs.start(FlowDefinition(name="shop.mixed", nodes=nodes, edges=edges).validated())
    await harness.runs.start(a_diamond())
    assert ((await listed()).blocked, (await listed()).partial) == (5, ())
    await finish(harness)
    assert ((await listed()).blocked, (await listed()).partial) == (3, ())
    monkeypatch.setattr(queues, "LISTED", replace(counts.LISTED, nodes=3))
    assert ((await listed()).blocked, (await listed()).partial) == (1, ("blocked",))


async def test_what_small_lanes_leave_of_their_share_goes_to_large_ones(harness, engine, listed, monkeypatch):
    for queue, tasks in (("mail", 7), ("shop", 1), ("bulk", 12)):
        await harness.enqueue_many(a.a_task(queue=queue), [{}] * tasks)
    for most, expected in ((20, (7, 1, 12)), (17, (7, 1, 9)), (3, (1, 1, 1)), (1, (1, 1, 1))):
        monkeypatch.setattr(queues, "LISTED", replace(counts.LISTED, queued=most))
        assert tuple([(await listed(name)).queued for name in ("mail", "shop", "bulk")]) == expected
    monkeypatch.setattr(queues, "LISTED", replace(counts.LISTED, queued=17))
    assert ((await listed("mail")).partial, (await listed("bulk")).partial) == ((), ("queued",))


async def test_a_queue_behind_the_first_thousand_names_is_found(harness, engine):
    await harness.enqueue(a.a_task(queue="zebra"))
    many = "insert into holdfast.queue (tenant_id, name) select 1, 'queue' || n from generate_series(1, 1001) n"
    await engine.database.fetch(many)
    assert await queues.pause(engine, DEFAULT_TENANT_ID, "zebra", actor="ann", reason="smtp is down")
    with pytest.raises(NotFound, match="Did you mean queue"):
        await queues.require_queue(engine.database, DEFAULT_TENANT_ID, "queue")
