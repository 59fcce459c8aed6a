"""What guards a run: its lock, that it is open, and that each of its ends is told once."""

from __future__ import annotations

import asyncio

from tests.core.flows import a_diamond, a_flow, a_map, a_node, a_parent, a_sum, a_wait, an_order_edge
from tests.flow.steps import finish, step
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.runs import commands as run_commands
from holdfast.engine.lifecycle.runs import pause
from holdfast.engine.lifecycle.runs.children import answer_once
from holdfast.engine.lifecycle.runs.redrive import redrive_run
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.maintenance.retention import retain_once
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.store.statements import sql
from holdfast.testing.factories import a_failure


async def refused(work, error=HoldfastError) -> None:
    try:
        await work
    except error:
        return
    raise AssertionError("it was accepted")


@check
async def nodes_that_end_together_are_both_counted(stage: Stage) -> None:
    """Many times: without the run's lock one of two counts is lost, and the last node never goes."""
    for turn in range(10):
        run = await stage.harness.runs.start(a_diamond())
        await step(stage.harness)
        leases = await stage.harness.claim(2)
        await asyncio.gather(*(settled_as_one(stage, [lease], is_locked_late=turn % 2 == 0) for lease in leases))
        assert (await stage.harness.runs.nodes(run))["end"] == "queued"
        await finish(stage.harness)


@check
async def runs_are_locked_in_the_order_of_their_ids(stage: Stage) -> None:
    """Task, run, node, and runs by their ids: who waits for the first one holds none of the others."""
    for is_locked_late in (False, True):
        runs = [int(one) for one in await stage.harness.runs.start_many(a_flow("a>b"), [{}, {}])]
        leases = await stage.harness.claim(2)
        async with stage.engine.database.transaction() as first, stage.impatient() as other:
            await first.fetch(sql("lock_runs"), runs[:1])
            late = asyncio.ensure_future(settled_as_one(stage, leases, is_locked_late=is_locked_late))
            await stage.waits(late)
            async with other.transaction():
                assert len(await other.fetch(sql("lock_runs"), runs[1:])) == 1
        await late
        await finish(stage.harness)


async def settled_as_one(stage: Stage, leases, *, is_locked_late: bool) -> None:
    """Their runs are locked by the statement that settles them, or by the next one."""

    async def nothing_else() -> None:
        pass

    async with stage.engine.database.transaction() as session:
        reports = [report_of(lease.claimed, Completed(b"1")) for lease in leases]
        before_release = nothing_else if is_locked_late else None
        done = await settle(session, stage.engine.catalog, reports, before_release=before_release)
    assert not done.refused


@check
async def a_run_that_is_over_is_not_opened_by_a_late_end(stage: Stage) -> None:
    """What a settling statement might find of a run that ended: nothing to count, nothing to release."""
    run = await stage.harness.runs.start(a_flow("a>b"))
    await finish(stage.harness)
    async with stage.engine.database.transaction() as session:
        assert not await session.fetch(sql("lock_runs"), [int(run)])
        await session.fetch(sql("advance_runs"), *([[]] * 21), [int(run)], [0], [0], [0], [1], *([[]] * 4))
    assert await stage.value("select failed from holdfast.run where run_id = $1", int(run)) == 0


@check
async def a_run_is_seen_and_steered_by_its_tenant_alone(stage: Stage) -> None:
    await another_tenant(stage)
    run = int(await stage.harness.runs.start(a_flow("a>b")))
    engine, who = stage.engine, {"actor": "x", "reason": ""}
    await refused(pause.pause_run(engine.database, OTHER_TENANT_ID, run, **who), NotFound)
    await refused(pause.resume_run(engine.database, engine.catalog, OTHER_TENANT_ID, run, **who), NotFound)
    cancel = run_commands.cancel_run(engine.database, engine.catalog, OTHER_TENANT_ID, run, grace_seconds=1, **who)
    await refused(cancel, NotFound)
    assert await stage.value("select paused_at is null and canceled_at is null from holdfast.run")


@check
async def a_retry_and_an_end_at_once_lose_nothing(stage: Stage) -> None:
    """A re-drive reads states under the run's lock, or counts an upstream that ends meanwhile twice."""
    for _ in range(6):
        run = await stage.harness.runs.start(a_diamond())
        await step(stage.harness)
        left, right = await stage.harness.claim(2)
        await stage.harness.settle(left, Failed(a_failure()))
        await asyncio.gather(stage.harness.settle(right, Completed(b"1")), stage.harness.runs.retry(run))
        await finish(stage.harness)
        assert await stage.harness.runs.nodes(run) == dict.fromkeys(("start", "left", "right", "end"), "completed")


@check
async def a_run_is_run_again_by_one_of_two(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_flow("a>b"))
    await finish(stage.harness, fail=[0])
    done = await asyncio.gather(*(stage.harness.runs.retry(run) for _ in range(2)), return_exceptions=True)
    assert sorted(isinstance(one, Conflict) for one in done) == [False, True]
    await finish(stage.harness)


@check
async def a_canceled_run_is_never_opened_again(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_flow("a>b"))
    await stage.harness.runs.cancel(run)
    async with stage.engine.database.transaction() as session:
        who = ("x", "", 1, [0], [])
        assert not await session.fetch(sql("reopen_run"), int(run), [0], 1, 0, *who)
        retry = redrive_run(session, stage.engine.catalog, 1, int(run), actor="x", reason="")
        await refused(retry, Conflict)
    assert not await stage.value(
        "select count(*) from holdfast.event where kind in ('execution.redriven', 'task.revived')"
    )


@check
async def only_an_open_run_is_paused_once_and_resumed_once(stage: Stage) -> None:
    over = await stage.harness.runs.start(a_flow("a>b"))
    await finish(stage.harness)
    await refused(stage.harness.runs.pause(over), Conflict)
    run = await stage.harness.runs.start(a_flow("a>b"))
    await refused(stage.harness.runs.resume(run), Conflict)
    await stage.harness.runs.pause(run, actor="ada")
    await refused(stage.harness.runs.pause(run, actor="bob"), Conflict)
    assert await stage.value("select paused_by from holdfast.run where run_id = $1", int(run)) == "ada"


@check
async def a_run_that_is_over_is_not_canceled(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_flow("a>b"))
    await finish(stage.harness)
    await refused(stage.harness.runs.cancel(run), Conflict)
    assert await stage.harness.runs.state(run) == "completed"


@check
async def a_canceled_run_ends_only_the_nodes_that_wait(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_wait())
    await stage.harness.runs.signal("payment", 1)
    await stage.harness.runs.cancel(run)
    assert await stage.harness.runs.nodes(run) == {"paid": "completed", "ship": "canceled"}


@check
async def an_answer_is_told_once(stage: Stage) -> None:
    await stage.harness.runs.snapshot(a_sum(1))
    await stage.harness.runs.start(a_parent())
    child = await stage.value("select run_id from holdfast.run where parent_run_id is not null")
    async with stage.engine.database.transaction() as session:
        assert not await session.fetch(sql("answer_child"), child)
    await step(stage.harness, outputs={0: {"v": 1}})
    await step(stage.harness, outputs={1: {"v": 1}})
    await step(stage.harness, outputs={2: 42})
    assert await stage.value("select is_answered from holdfast.run where run_id = $1", child)
    async with stage.engine.database.transaction() as session:
        assert not await session.fetch(sql("answer_child"), child)
    await answer_once(stage.engine.database, stage.engine.catalog)
    await finish(stage.harness)


@check
async def items_are_counted_only_while_their_node_maps(stage: Stage) -> None:
    await stage.harness.runs.start(a_map())
    await step(stage.harness, outputs={0: {"all": [1]}})
    await step(stage.harness)
    run = await stage.value("select run_id from holdfast.run")
    async with stage.engine.database.transaction() as session:
        assert not await session.fetch(sql("count_items"), [run], [1], [0], [1], [0], [False], [False])
    assert (await stage.harness.runs.nodes(str(run)))["double"] == "completed"
    await finish(stage.harness)


@check
async def only_members_that_did_not_complete_run_again(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_map())
    await step(stage.harness, outputs={0: {"all": [1, 2]}})
    first, second = await stage.harness.claim(10)
    await stage.harness.settle(first, Completed(b"1"))
    await stage.harness.settle(second, Failed(a_failure()))
    await stage.harness.runs.retry(run)
    [again] = await stage.harness.claim(10)
    assert again.task_id == second.task_id
    await stage.harness.settle(again, Completed(b"2"))
    await finish(stage.harness)
    assert await stage.harness.runs.state(run) == "completed"


@check
async def a_node_is_run_again_with_its_run_alone(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_flow("a>b"))
    await finish(stage.harness, fail=[0])
    await refused(stage.harness.retry(str(int(run) + 1)), Conflict)
    assert await stage.harness.runs.nodes(run) == {"a": "failed", "b": "upstream_failed"}


@check
async def a_node_that_asks_again_forgets_its_own_answers_alone(stage: Stage) -> None:
    asks = {"kind": NodeKind.WAIT, "config": {"approval": True}}
    nodes = (Node(name="a", action="x", **asks), Node(name="b", action="x", **asks), a_node("last"))
    edges = (an_order_edge("a>last"), an_order_edge("b>last"))
    run = await stage.harness.runs.start(FlowDefinition(name="shop.asks", nodes=nodes, edges=edges).validated())
    for name in ("a", "b"):
        await stage.harness.runs.answer(run, name)
    await finish(stage.harness)
    await stage.harness.runs.retry(run, only="a")
    kept = "select array_agg(wait_key) from holdfast.signal"
    assert await stage.value(kept) == [f"approval:{run}:b"]


@check
async def an_event_is_there_for_a_node_that_runs_again(stage: Stage) -> None:
    """One that came when the node had given up; one that it took is not taken again."""
    run = await stage.harness.runs.start(a_wait(timeout_seconds=60))
    await stage.clock.advance(61)
    await stage.harness.runs.repair_once()
    await stage.harness.runs.signal("payment", 1)
    await stage.harness.runs.retry(run)
    assert (await stage.harness.runs.nodes(run))["paid"] == "completed"
    await finish(stage.harness)


@check
async def who_waits_for_a_run_that_is_over_is_not_kept_waiting(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_flow("a>b"))
    await finish(stage.harness)
    assert not await stage.engine.database.fetch(sql("await_tasks"), [int(run)], 1)


@check
async def another_tenant_marks_nothing_as_awaited(stage: Stage) -> None:
    await another_tenant(stage)
    run = await stage.harness.runs.start(a_flow("a>b"))
    [lease] = await stage.harness.claim(1)
    ids = [int(run), int(lease.task_id)]
    assert not await stage.engine.database.fetch(sql("await_tasks"), ids, OTHER_TENANT_ID)
    assert len(await stage.engine.database.fetch(sql("await_tasks"), ids, 1)) == 2


@check
async def an_event_of_today_is_kept_behind_old_ones(stage: Stage) -> None:
    await stage.harness.runs.signal("other", 1)
    await stage.clock.advance(40 * 86_400)
    await stage.harness.runs.signal("other", 2)
    await retain_once(stage.engine.database, days=30)
    assert await stage.value("select array_agg(convert_from(payload, 'utf8')) from holdfast.signal") == ["2"]


@check
async def an_event_sent_to_a_run_that_is_over_goes(stage: Stage) -> None:
    over, goes_on = [await stage.harness.runs.start(a_wait()) for _ in range(2)]
    for run in (over, goes_on):
        await stage.harness.runs.signal("other", 1, run_id=run)
    await stage.harness.runs.cancel(over)
    await stage.clock.advance(40 * 86_400)
    await retain_once(stage.engine.database, days=30)
    assert await stage.value("select array_agg(run_id) from holdfast.signal") == [int(goes_on)]


@check
async def an_event_that_an_open_run_may_wait_for_is_kept(stage: Stage) -> None:
    run = await stage.harness.runs.start(a_wait())
    await stage.harness.runs.signal("other", 1)
    await stage.clock.advance(40 * 86_400)
    await retain_once(stage.engine.database, days=30)
    assert await stage.value("select count(*) from holdfast.signal") == 1
    await stage.harness.runs.cancel(run)
    await retain_once(stage.engine.database, days=30)
    assert await stage.value("select count(*) from holdfast.signal") == 0
