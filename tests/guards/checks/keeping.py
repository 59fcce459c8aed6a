"""What guards history, and what the schema itself refuses."""

from __future__ import annotations

import asyncio

import asyncpg
from tests.core.flows import a_flow, a_wait
from tests.engine.test_redrive_races import end_all
from tests.guards.checks.stage import (
    Stage,
    check,
    refuses,
)

from holdfast.core.tasks.outcome import Failed, Lost
from holdfast.engine.lifecycle.dead_letters.commands import ignore
from holdfast.engine.lifecycle.runs.redrive import redrive_run
from holdfast.engine.maintenance.retention import begin_today, fold_old, retain_once
from holdfast.store.statements import sql
from holdfast.testing.factories import (
    a_completed_task,
    a_failed_task,
    a_failure,
    a_retrying_task,
    a_running_task,
    a_task,
)


async def _day_after(stage: Stage, days: float = 3) -> None:
    await stage.clock.advance(f"{days:g}d")
    await retain_once(stage.engine.database, days=1)


@check
async def history_in_use_is_kept(stage: Stage) -> None:
    """A block with live, failed or canceled work stays, however old; one with completed work goes."""
    live = await stage.harness.enqueue(a_task())
    for _ in range(3):
        await _day_after(stage)
    assert await stage.state(live.task_id) == "queued"
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure("validation: no")))
    for _ in range(2):
        await _day_after(stage)
    assert await stage.value("select count(*) from holdfast.body where task_id = $1", int(live.task_id)) == 1


@check
async def a_run_that_is_run_again_stays(stage: Stage) -> None:
    """The re-drive had not committed when its block was looked at. A wait has no live task to keep the block."""
    engine = stage.engine
    run_id = await stage.harness.runs.start(a_wait())
    await stage.harness.runs.signal("payment", 1)
    await end_all(stage.harness)
    await stage.clock.advance("1d")
    await begin_today(engine.database)
    await stage.clock.advance("3d")
    async with engine.database.transaction() as session:
        await redrive_run(session, engine.catalog, 1, int(run_id), actor="ann", reason="again", only="paid")
        folding = asyncio.ensure_future(fold_old(engine.database, days=1))
        await stage.waits(folding)
    await folding
    await stage.harness.runs.signal("payment", 2)
    await end_all(stage.harness)
    assert await stage.harness.runs.state(run_id) == "completed"


@check
async def a_failure_nobody_dealt_with_is_kept(stage: Stage) -> None:
    """Also one that wanted no letter."""
    task_id = await a_failed_task(stage.harness)
    await stage.engine.database.fetch("delete from holdfast.dead_letter")
    await stage.engine.database.fetch("update holdfast.ended set has_letter = false")
    for _ in range(3):
        await _day_after(stage)
    assert await stage.state(task_id) == "failed"


@check
async def a_failure_that_was_left_is_kept(stage: Stage) -> None:
    task_id = await a_failed_task(stage.harness)
    await ignore(stage.engine, 1, task_id=int(task_id), actor="ann", reason="known")
    for _ in range(3):
        await _day_after(stage)
    assert await stage.state(task_id) == "failed"


@check
async def young_history_is_kept(stage: Stage) -> None:
    task_id = await a_completed_task(stage.harness)
    events = await stage.value("select count(*) from holdfast.event")
    await retain_once(stage.engine.database, days=1)
    await stage.clock.advance("1d")
    await retain_once(stage.engine.database, days=5)
    assert await stage.state(task_id) == "completed"
    assert await stage.value("select count(*) from holdfast.event") == events


@check
async def young_events_behind_old_ones_are_kept(stage: Stage) -> None:
    await a_completed_task(stage.harness)
    await stage.clock.advance("6d")
    task_id = await a_completed_task(stage.harness)
    await retain_once(stage.engine.database, days=5)
    told = await stage.engine.database.fetch("select distinct task_ids from holdfast.event where kind like 'task.%'")
    assert [row["task_ids"] for row in told] == [[int(task_id)]]


@check
async def workers_in_use_are_not_forgotten(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.harness.worker_id("idle")
    await stage.harness.worker_id("left")
    await stage.clock.advance("1d")
    await stage.harness.retire("left")
    await retain_once(stage.engine.database, days=1)
    assert await stage.value("select count(*) from holdfast.worker") == 3
    await stage.harness.retire("first")
    await _day_after(stage)
    kept = await stage.engine.database.fetch("select name from holdfast.worker order by 1")
    assert [row["name"] for row in kept] == ["first", "idle"]
    assert lease.worker_id


@check
async def workers_that_a_failure_names_are_not_forgotten(stage: Stage) -> None:
    await stage.harness.settle(await a_running_task(stage.harness), Failed(a_failure()))
    await stage.harness.retire("first")
    await _day_after(stage)
    assert await stage.value("select count(*) from holdfast.worker") == 1


@check
async def ids_never_go_back(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    await _day_after(stage)
    tasks, runs = [], []
    for _ in range(3):
        tasks.append(int((await stage.harness.enqueue(a_task())).task_id))
        runs.append(int(await stage.harness.runs.start(a_flow("a>b"))))
        await retain_once(stage.engine.database, days=1)
    assert tasks == sorted(set(tasks)) and runs == sorted(set(runs))


@check
async def a_span_does_not_lead_back_to_a_block_before(stage: Stage) -> None:
    """Taking one is two steps of a sequence: what enters a block between them would be undone by the second."""
    database = stage.engine.database
    await stage.clock.advance("1d")
    async with database.transaction() as session:
        await session.fetch("select pg_advisory_xact_lock(1752132967, 0)")
        first = await session.fetchval("select nextval('holdfast.span')")
        entering = asyncio.ensure_future(begin_today(database))
        await stage.waits(entering)
        await session.fetch("select setval('holdfast.span', $1::bigint + 2)", first)
    await entering
    newest = await stage.value("select max(first_id) from holdfast.block")
    assert await stage.value("select last_value from holdfast.span") > newest
    # A span that was set back is brought forward again.
    await database.fetch("select setval('holdfast.span', $1::bigint + 2)", first)
    await begin_today(database)
    assert int(await stage.harness.runs.start(a_flow("a>b"))) > newest


@check
async def one_process_at_a_time_changes_blocks(stage: Stage) -> None:
    await stage.clock.advance("2d")
    async with stage.engine.database.transaction() as held:
        await held.fetch(sql("lock_blocks"))
        await retain_once(stage.engine.database, days=1)
    assert await stage.value("select count(*) from holdfast.block") == 1


@check
async def a_spent_budget_ends_the_task(stage: Stage) -> None:
    lease = await a_running_task(stage.harness, max_retries=0)
    await stage.harness.settle(lease, Failed(a_failure()))
    lost = await a_running_task(stage.harness, max_losses=0)
    await stage.harness.settle(lost, Lost(a_failure()))
    assert [await stage.state(one.task_id) for one in (lease, lost)] == ["failed", "failed"]
    assert await stage.value("select count(*) from holdfast.ended") == 2


@check
async def losses_and_failures_have_budgets_of_their_own(stage: Stage) -> None:
    lease = await a_running_task(stage.harness, max_retries=0, max_losses=1)
    await stage.harness.settle(lease, Lost(a_failure()))
    assert (await stage.harness.task(lease.task_id)).loss_count == 1
    again = await stage.harness.claim_task(lease.task_id)
    await stage.harness.settle(again, Failed(a_failure()))
    assert await stage.value("select count(*) from holdfast.ended") == 1


@check
async def what_cannot_get_better_is_not_retried(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.harness.settle(lease, Failed(a_failure("validation: no such customer")))
    assert await stage.value("select count(*) from holdfast.ended") == 1


@check
async def a_retry_waits_for_its_backoff(stage: Stage) -> None:
    await a_retrying_task(stage.harness)
    assert await stage.harness.claim(1) == []
    assert await stage.harness.reconcile_once() == 0


@check
async def a_first_loss_is_retried_at_once(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.harness.settle(lease, Lost(a_failure()))
    assert len(await stage.harness.claim(1)) == 1


async def _refused_by_schema(stage: Stage, change: str, where: str = "state = 'q'") -> None:
    await stage.harness.enqueue(a_task())
    await a_running_task(stage.harness)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch(f"update holdfast.live set {change} where {where}")


@check
async def the_schema_refuses_unknown_states(stage: Stage) -> None:
    await _refused_by_schema(stage, "state = 'z'")


@check
async def the_schema_refuses_a_lease_on_idle_work(stage: Stage) -> None:
    await _refused_by_schema(stage, "lease_token = gen_random_uuid()")


@check
async def the_schema_refuses_running_work_without_a_worker(stage: Stage) -> None:
    await _refused_by_schema(stage, "worker_id = null", "state = 'r'")


@check
async def the_schema_refuses_waiting_without_an_end(stage: Stage) -> None:
    await _refused_by_schema(stage, "state = 'w'")


@check
async def the_schema_refuses_an_overdrawn_budget(stage: Stage) -> None:
    await _refused_by_schema(stage, "retries = max_retries + 1")


@check
async def the_schema_refuses_an_overdrawn_budget_of_losses(stage: Stage) -> None:
    await _refused_by_schema(stage, "losses = max_losses + 1")


@check
async def the_schema_refuses_a_retry_that_does_not_wait(stage: Stage) -> None:
    await _refused_by_schema(stage, "is_retrying = true")


@check
async def the_schema_refuses_a_node_of_no_run(stage: Stage) -> None:
    await _refused_by_schema(stage, "node_no = 1")


@check
async def the_schema_refuses_a_retry_that_is_no_decision(stage: Stage) -> None:
    await a_failed_task(stage.harness)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.failure set retry_at = holdfast.instant()")
