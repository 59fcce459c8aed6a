"""What guards the deletion of what failed for good: whose it is, and that nothing of it goes on."""

from __future__ import annotations

import asyncio

from tests.core.flows import a_flow
from tests.guards.checks.recovering import a_letter
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check

from holdfast.core.tasks.outcome import Failed
from holdfast.engine.lifecycle.dead_letters.requeue import RequeueRequest, redrive_task
from holdfast.store.statements import sql
from holdfast.testing.factories import a_canceled_task, a_failed_task, a_failure


@check
async def only_what_failed_for_good_is_deleted(stage: Stage) -> None:
    """And of a run nothing without the rest of it."""
    await another_tenant(stage)
    failed, canceled = await a_failed_task(stage.harness), await a_canceled_task(stage.harness)
    await stage.harness.runs.start(a_flow())
    node = await stage.harness.claim_one()
    await stage.harness.settle(node, Failed(a_failure()))
    database = stage.engine.database
    assert not await database.fetch(sql("delete_dead"), [int(failed)], OTHER_TENANT_ID, [])
    assert not await database.fetch(sql("delete_dead"), [int(canceled), int(node.task_id)], 1, [])
    assert len(await database.fetch(sql("delete_dead"), [int(failed)], 1, [])) == 1


@check
async def only_a_run_that_is_over_is_deleted(stage: Stage) -> None:
    """Not one that goes on, that is another tenant's, or that another run still waits for."""
    await another_tenant(stage)
    database = stage.engine.database
    run_id = await stage.harness.runs.start(a_flow())
    assert not await database.fetch(sql("delete_dead"), [], 1, [int(run_id)])
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    assert not await database.fetch(sql("delete_dead"), [], OTHER_TENANT_ID, [int(run_id)])
    parent = await stage.harness.runs.start(a_flow())
    of_parent = "update holdfast.run set parent_run_id = $2, parent_node = 0 where run_id = $1"
    await database.fetch(of_parent, int(run_id), int(parent))
    assert not await database.fetch(sql("delete_dead"), [], 1, [int(run_id)])
    await database.fetch("update holdfast.run set parent_run_id = null, parent_node = null")
    assert len(await database.fetch(sql("delete_dead"), [], 1, [int(run_id)])) == 1


@check
async def a_deletion_holds_a_run_and_the_one_that_started_it(stage: Stage) -> None:
    """So that whoever runs one of these again comes before it or after it."""
    await another_tenant(stage)
    database, families = stage.engine.database, sql("lock_families")
    parent, child = [int(await stage.harness.runs.start(a_flow())) for _ in range(2)]
    of_parent = "update holdfast.run set parent_run_id = $2, parent_node = 0 where run_id = $1"
    await database.fetch(of_parent, child, parent)
    assert not await database.fetch(families, [child], OTHER_TENANT_ID)
    async with database.transaction() as session:
        await session.fetch("select from holdfast.run where run_id = $1 for no key update", parent)
        late = asyncio.ensure_future(database.fetch(families, [child], 1))
        await stage.waits(late)
        assert not late.done()
    assert [row["run_id"] for row in await late] == [parent, child]
    await database.fetch("update holdfast.run set parent_run_id = null, parent_node = null")


@check
async def a_deletion_that_waited_for_a_re_drive_deletes_nothing(stage: Stage) -> None:
    database, catalog = stage.engine.database, stage.engine.catalog
    task_id, _ = await a_letter(stage)
    run_id = await stage.harness.runs.start(a_flow())
    node = await stage.harness.claim_one()
    await stage.harness.settle(node, Failed(a_failure()))
    for again, which in ((task_id, ([int(task_id)], 1, [])), (node.task_id, ([], 1, [int(run_id)]))):
        async with database.transaction() as session:
            await redrive_task(session, catalog, 1, int(again), RequeueRequest("ann", "fixed"))
            late = asyncio.ensure_future(database.fetch(sql("delete_dead"), *which))
            await stage.waits(late)
        assert not await late
    assert await stage.value("select count(*) from holdfast.body where task_id = $1", int(task_id)) == 1
