"""Commits: with the completion of their attempt, by the holder of the lease, once, or not at all."""

from __future__ import annotations

import pytest
from tests.datasets.hands import completed, declared, orders, rows, seen, staged, stages

from holdfast.core.datasets.dataset import Mode
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.datasets.declare import list_generations, recent_commits
from holdfast.engine.datasets.stage import AttemptLease, StagedPart, open_part, stage_batch, sweep_stages_once
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import Conflict, LeaseLost
from holdfast.testing.factories import a_failure, a_running_task


async def write(harness, generation, given, **options):
    """One task that writes rows and completes."""
    lease = await a_running_task(harness)
    commit = await staged(harness.engine, lease, generation, given, **options)
    await harness.settle(lease, completed(commit))
    return lease


async def last_failure(engine):
    return await engine.database.fetchrow("select * from holdfast.failure order by ended_at desc limit 1")


async def test_staged_rows_are_seen_by_nobody_before_the_completion(harness, engine, generation):
    lease = await a_running_task(harness)
    commit = await staged(engine, lease, generation, rows(1, 2))
    assert (await seen(engine), await stages(engine)) == ([], (1, 2))
    await harness.settle(lease, completed(commit))
    assert (await seen(engine), await stages(engine)) == ([(1, 100), (2, 100)], (0, 0))


async def test_a_key_comes_once_and_the_first_row_stays(harness, engine, generation):
    await write(harness, generation, rows(1, 2))
    await write(harness, generation, [*rows(2, 3, cents=7), *rows(3, cents=8)])
    assert await seen(engine) == [(1, 100), (2, 100), (3, 7)]
    second, first = await recent_commits(engine.database, 1, "orders", limit=10)
    assert (first.rows_given, first.rows_added) == (2, 2)
    assert (second.rows_given, second.rows_added) == (3, 1)


async def test_without_a_key_every_row_is_added(harness, engine):
    generation = await declared(engine, orders(key=()))
    await write(harness, generation, rows(1, 1))
    await write(harness, generation, rows(1))
    assert await seen(engine) == [(1, 100)] * 3


async def test_replace_replaces_exactly_its_partition(harness, engine, generation):
    await write(harness, generation, rows(1, 2), mode="replace", partition="monday")
    await write(harness, generation, rows(3), mode="replace", partition="tuesday")
    await write(harness, generation, rows(4), mode="append")
    await write(harness, generation, rows(2, 5, cents=9), mode="replace", partition="monday")
    assert await seen(engine) == [(2, 9), (3, 100), (4, 100), (5, 9)]


async def test_replacing_with_nothing_empties_the_partition(harness, engine, generation):
    await write(harness, generation, rows(1, 2), mode="replace", partition="monday")
    await write(harness, generation, [], mode="replace", partition="monday")
    assert await seen(engine) == []


async def test_a_replace_that_takes_a_key_of_another_partition_fails_that_task(harness, engine, generation):
    await write(harness, generation, rows(1), mode="replace", partition="monday")
    lease = await write(harness, generation, rows(7, 1), mode="replace", partition="tuesday")
    failure = await last_failure(engine)
    assert (failure["code"], failure["decision"]) == ("dataset_key_conflict", "stop")
    assert "(order_id)=(1)" in failure["message"]
    assert (await harness.task(lease.task_id)).state == "failed"
    assert await seen(engine) == [(1, 100)]


async def test_all_parts_of_an_attempt_are_committed_or_none(harness, engine, generation):
    await write(harness, generation, rows(1), mode="replace", partition="monday")
    lease = await a_running_task(harness)
    good = await staged(engine, lease, generation, rows(5), number=0)
    bad = await staged(engine, lease, generation, rows(1), mode="replace", partition="tuesday", number=1)
    await harness.settle(lease, completed(good, bad))
    assert await seen(engine) == [(1, 100)]
    assert (await harness.task(lease.task_id)).state == "failed"


async def test_one_bad_commit_holds_up_no_other_report_of_the_batch(harness, engine, generation):
    await write(harness, generation, rows(1), mode="replace", partition="monday")
    leases = [await a_running_task(harness) for _ in range(3)]
    bad = await staged(engine, leases[0], generation, rows(1), mode="replace", partition="tuesday")
    good = await staged(engine, leases[1], generation, rows(2))
    reports = [
        report_of(leases[0].claimed, completed(bad)),
        report_of(leases[1].claimed, completed(good)),
        report_of(leases[2].claimed, Failed(a_failure())),
    ]
    async with engine.database.transaction() as session:
        settled = await settle(session, engine.catalog, reports)
    assert (settled.accepted, settled.refused) == (3, [])
    assert [str((await harness.task(lease.task_id)).state) for lease in leases] == ["failed", "completed", "failed"]
    assert await seen(engine) == [(1, 100), (2, 100)]


async def test_an_attempt_that_lost_its_lease_commits_nothing(harness, engine, generation, clock):
    lease = await a_running_task(harness, max_losses=2)
    commit = await staged(engine, lease, generation, rows(1))
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    with pytest.raises(LeaseLost):
        await harness.settle(lease, completed(commit))
    assert await seen(engine) == []
    assert await sweep_stages_once(engine.database) == 1
    assert await stages(engine) == (0, 0)


async def test_an_attempt_that_lost_its_lease_cannot_stage(harness, engine, generation, clock):
    lease = await a_running_task(harness, max_losses=2)
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    with pytest.raises(LeaseLost):
        await staged(engine, lease, generation, rows(1))
    assert await stages(engine) == (0, 0)


async def test_an_attempt_that_was_swept_cannot_go_on_staging(harness, engine, generation, clock):
    """Rows without their part would never be swept again."""
    lease = await a_running_task(harness, max_losses=2)
    part = StagedPart(AttemptLease(lease.claimed.task_id, lease.attempt, lease.token), generation, Mode.APPEND, 0, "")
    await open_part(engine.database, part)
    await stage_batch(engine.database, part, [(1, 100)])
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    assert await sweep_stages_once(engine.database) == 1
    with pytest.raises(LeaseLost):
        await stage_batch(engine.database, part, [(2, 100)])
    assert await stages(engine) == (0, 0)


async def test_the_same_report_repeated_commits_once_and_answers_as_before(harness, engine):
    generation = await declared(engine, orders(key=()))
    lease = await a_running_task(harness)
    commit = await staged(engine, lease, generation, rows(1))
    for _ in range(2):
        await harness.settle(lease, completed(commit))
    assert await seen(engine) == [(1, 100)]


async def test_a_commit_that_failed_answers_the_same_when_repeated(harness, engine, generation):
    await write(harness, generation, rows(1), mode="replace", partition="monday")
    lease = await a_running_task(harness)
    bad = await staged(engine, lease, generation, rows(1), mode="replace", partition="tuesday")
    for _ in range(2):
        await harness.settle(lease, completed(bad))
    assert len(await harness.attempts(lease.task_id)) == 1


async def test_a_retry_stages_anew_and_what_the_failed_attempt_staged_is_swept(harness, engine):
    generation = await declared(engine, orders(key=()))
    lease = await a_running_task(harness, base_backoff_secs=0)
    await staged(engine, lease, generation, rows(1))
    await harness.settle(lease, Failed(a_failure()))
    again = await harness.claim_task(lease.task_id)
    commit = await staged(engine, again, generation, rows(1))
    await harness.settle(again, completed(commit))
    assert await seen(engine) == [(1, 100)]
    assert await sweep_stages_once(engine.database) == 1
    assert await stages(engine) == (0, 0)


async def test_what_a_running_attempt_staged_is_not_swept(harness, engine, generation):
    lease = await a_running_task(harness)
    commit = await staged(engine, lease, generation, rows(1))
    assert await sweep_stages_once(engine.database) == 0
    await harness.settle(lease, completed(commit))
    assert await seen(engine) == [(1, 100)]


async def test_a_report_that_misses_rows_commits_nothing_and_is_tried_again(harness, engine, generation):
    lease = await a_running_task(harness, base_backoff_secs=0)
    commit = await staged(engine, lease, generation, rows(1, 2))
    await engine.database.fetch("delete from holdfast_data.orders_v1_staged where order_id = 2")
    await harness.settle(lease, completed(commit))
    failure = await last_failure(engine)
    assert (failure["code"], failure["decision"]) == ("dataset_stage_missing", "retry")
    assert await seen(engine) == []


async def test_the_number_of_rows_is_kept(harness, engine, generation):
    await write(harness, generation, rows(1, 2, 3), mode="replace", partition="monday")
    await write(harness, generation, rows(9), mode="replace", partition="monday")
    await write(harness, generation, rows(9, 10))
    [view] = await list_generations(engine.database, 1)
    assert (view.rows, view.state, view.unfinished, view.failed) == (2, "current", 0, 0)


async def test_an_old_version_takes_no_more_rows_once_it_is_superseded(harness, engine, generation):
    from holdfast.engine.datasets.cutover import CutoverRequest, cut_over

    lease = await a_running_task(harness, base_backoff_secs=0)
    commit = await staged(engine, lease, generation, rows(1))
    await declared(engine, orders(2))
    await cut_over(engine.database, 1, "orders", 2, CutoverRequest(actor="test", reason=""))
    await harness.settle(lease, completed(commit))
    failure = await last_failure(engine)
    assert (failure["code"], failure["decision"]) == ("dataset_superseded", "retry")
    again = await harness.claim_task(lease.task_id)
    with pytest.raises(Conflict) as refused:
        await staged(engine, again, generation, rows(1))
    assert refused.value.code == "dataset_superseded"


async def test_tasks_without_datasets_cost_no_statement_more(harness, engine):
    said: list[str] = []

    class WorkerCallbacks:
        def before(self, statement):
            said.append(statement.splitlines()[0])

        def after(self, statement):
            pass

    leases = [await a_running_task(harness) for _ in range(3)]
    engine.database.tap = WorkerCallbacks()
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(lease.claimed, completed()) for lease in leases])
    engine.database.tap = None
    assert said == ["-- holdfast: settle_completed", "commit"]
