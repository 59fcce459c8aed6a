"""Failures stay until somebody deletes them: with a reason, whole, and on record."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import a_flow, a_node

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.audit import list_audit
from holdfast.engine.lifecycle.tasks.delete import delete_group, delete_task
from holdfast.engine.queries.dead_letters import dead_groups
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.testing import factories as a

WHO = {"actor": "ann", "reason": "the customer asked for it"}
TABLES = ("ended", "dead_letter", "failure", "attempt", "body", "idempotency", "note", "effect", "step")


async def rows_of(harness, task_id):
    """In how many tables something is kept of a task."""
    queries = (f"select count(*) from holdfast.{table} where task_id = $1" for table in TABLES)
    return sum([bool(await harness.engine.database.fetchval(query, int(task_id))) for query in queries])


async def remove(harness, task_id, **options):
    return await delete_task(harness.engine, 1, int(task_id), **{**WHO, **options})


async def test_a_failed_task_goes_with_everything_kept_of_it(harness):
    task_id, other = await a.a_failed_task(harness, key="order-7"), await a.a_failed_task(harness)
    done = await remove(harness, task_id)
    assert (done.tasks, done.runs, done.letters, done.left) == (1, 0, 1, 0)
    assert await rows_of(harness, task_id) == 0 and await rows_of(harness, other) > 0
    with pytest.raises(NotFound):
        await remove(harness, task_id)
    assert (await harness.enqueue(a.a_task(key="order-7"))).is_new


async def test_what_was_deleted_is_on_record(harness):
    task_id = await a.a_failed_task(harness)
    await remove(harness, task_id)
    [row] = await list_audit(harness.engine.database, 1)
    assert (row.verb, row.subject_kind, row.subject_id) == ("dead.delete", "task", task_id)
    assert (row.before, row.after) == ({"state": "failed", "letters": 1}, {"state": "deleted", "letters": 0})
    assert (row.actor, row.reason) == (WHO["actor"], WHO["reason"])


async def test_nothing_is_deleted_without_a_reason(harness):
    task_id = await a.a_failed_task(harness)
    with pytest.raises(Invalid, match="reason"):
        await remove(harness, task_id, reason=" ")
    assert await rows_of(harness, task_id) > 0


@pytest.mark.parametrize("stage", ["completed", "canceled", "retrying"])
async def test_only_what_failed_for_good_is_deleted_by_hand(harness, stage):
    task_id = await getattr(a, f"a_{stage}_task")(harness)
    with pytest.raises(Conflict, match=stage) as refused:
        await remove(harness, task_id)
    assert refused.value.code == "task_not_dead" and await rows_of(harness, task_id) > 0


async def test_a_node_goes_with_its_whole_run(harness):
    flow = a_flow("a>b")
    run_id = await harness.runs.start(flow)
    await harness.settle(await harness.claim_one(), Completed(b"{}"))
    failed = await harness.claim_one()
    await harness.settle(failed, Failed(a.a_failure()))
    done = await remove(harness, failed.task_id)
    assert (done.tasks, done.runs, done.letters) == (1, 1, 1)
    for name in ("a", "b"):
        assert await rows_of(harness, harness.runs.task_id(run_id, flow, name)) == 0
    assert await harness.engine.database.fetchval("select count(*) from holdfast.run") == 0


async def test_items_go_with_their_run(harness):
    node = a_node("each", kind=NodeKind.MAP, map_over="x", config={"x": [1, 2, 3]})
    await harness.runs.start(FlowDefinition(name="shop.map", nodes=(node,)).validated())
    leases = await harness.claim(3)
    for lease, outcome in zip(leases, (Completed(b"1"), Failed(a.a_failure()), Failed(a.a_failure())), strict=True):
        await harness.settle(lease, outcome)
    [group] = await dead_groups(harness.engine.database, 1)
    done = await delete_group(harness.engine, 1, group.fingerprint, **WHO)
    assert (done.tasks, done.runs, done.letters) == (2, 1, 2)
    assert [await rows_of(harness, lease.task_id) for lease in leases] == [0, 0, 0]


async def test_a_run_that_is_not_over_stays(harness):
    await harness.runs.start(a_flow(alone=("a", "b")))
    lease = await harness.claim_one()
    await harness.settle(lease, Failed(a.a_failure()))
    with pytest.raises(Conflict) as refused:
        await remove(harness, lease.task_id)
    assert refused.value.code == "run_not_over" and "--abandon" in refused.value.advice
    [group] = await dead_groups(harness.engine.database, 1)
    done = await delete_group(harness.engine, 1, group.fingerprint, **WHO)
    assert (done.tasks, done.left) == (0, 1) and await rows_of(harness, lease.task_id) > 0


async def test_a_group_goes_whole_also_what_was_ignored(harness):
    from holdfast.engine.lifecycle.dead_letters.commands import ignore

    ids = [await a.a_failed_task(harness) for _ in range(3)]
    [group] = await dead_groups(harness.engine.database, 1)
    await ignore(harness.engine, 1, task_id=int(ids[0]), actor="ann", reason="known")
    done = await delete_group(harness.engine, 1, group.fingerprint, **WHO)
    assert done.tasks == 3 and [await rows_of(harness, one) for one in ids] == [0, 0, 0]
    with pytest.raises(NotFound):
        await delete_group(harness.engine, 1, group.fingerprint, **WHO)


async def test_another_tenants_failures_are_not_found(harness):
    task_id = await a.a_failed_task(harness)
    [group] = await dead_groups(harness.engine.database, 1)
    with pytest.raises(NotFound):
        await delete_task(harness.engine, 2, int(task_id), **WHO)
    with pytest.raises(NotFound):
        await delete_group(harness.engine, 2, group.fingerprint, **WHO)
    assert await rows_of(harness, task_id) > 0


async def test_of_a_deletion_and_a_re_drive_at_once_one_is_applied(harness):
    for _ in range(5):
        task_id = await a.a_failed_task(harness)
        deleted, again = await asyncio.gather(
            remove(harness, task_id), harness.redrive(task_id), return_exceptions=True
        )
        assert isinstance(again, NotFound) != isinstance(deleted, Conflict | NotFound)
        assert (await rows_of(harness, task_id) == 0) == isinstance(again, NotFound)
