"""What guards a dataset: the lease of who writes, the state of a generation, and the order of the locks."""

from __future__ import annotations

import asyncio
import uuid

from tests.datasets.hands import completed, declared, orders, rows, seen, staged, stages
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, forged, refuses, reserved

from holdfast.core.datasets.dataset import Commit, Mode
from holdfast.engine.datasets import cutover, declare
from holdfast.engine.datasets.cutover import CutoverRequest, finish_rollbacks_once
from holdfast.engine.datasets.declare import add_builds, list_generations
from holdfast.engine.datasets.stage import (
    AttemptLease,
    StagedPart,
    forget_commits_once,
    open_part,
    stage_batch,
    sweep_stages_once,
)
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import Conflict, LeaseLost, NotFound
from holdfast.store.sql.datasets import datasets as datasets_sql
from holdfast.store.statements import sql
from holdfast.testing.engine_harness import HeldLease
from holdfast.testing.factories import a_running_task

BY = CutoverRequest(actor="check", reason="")


async def cut_over(stage: Stage, version: int, **options) -> None:
    await cutover.cut_over(stage.engine.database, 1, "orders", version, BY, **options)


async def states(stage: Stage) -> dict[int, str]:
    return {view.version: view.state for view in await list_generations(stage.engine.database, 1)}


def a_part(lease: HeldLease, generation, number: int = 0) -> StagedPart:
    who = AttemptLease(lease.claimed.task_id, lease.attempt, lease.token)
    return StagedPart(who, generation, Mode.APPEND, number, "")


async def lost_and_claimed_again(stage: Stage, lease: HeldLease) -> HeldLease:
    await stage.clock.advance(seconds=lease.seconds + 1)
    await stage.harness.reap_once()
    return await stage.harness.claim_task(lease.task_id)


@check
async def a_dataset_may_be_declared_by_many(stage: Stage) -> None:
    await declared(stage.engine)
    await declared(stage.engine, orders(2))
    assert await states(stage) == {1: "current", 2: "building"}


@check
async def another_tenants_dataset_is_not_there(stage: Stage) -> None:
    await another_tenant(stage)
    await declared(stage.engine)
    await declared(stage.engine, orders(2))
    with refuses(NotFound):
        await cutover.cut_over(stage.engine.database, OTHER_TENANT_ID, "orders", 2, BY)
    assert await states(stage) == {1: "current", 2: "building"}


@check
async def declarations_wait_for_one_another(stage: Stage) -> None:
    await declared(stage.engine)
    async with stage.engine.database.transaction() as session:
        known = await datasets_sql.lock_dataset(session, 1, "orders")
        await declare._make(session, 1, known, orders(2))
        late = asyncio.ensure_future(declared(stage.engine, orders(2)))
        await stage.waits(late)
    await late
    assert await states(stage) == {1: "current", 2: "building"}


@check
async def staging_needs_the_current_lease(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness)
    for stale in (forged(lease, attempt=lease.attempt + 1), forged(lease, lease_token=uuid.uuid4())):
        with refuses():
            await open_part(stage.engine.database, a_part(stale, generation))


@check
async def a_reservation_stages_nothing(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease, reservation = await a_running_task(stage.harness), await reserved(stage)
    unattached = forged(
        lease, task_id=reservation.task_id, attempt=reservation.attempt, lease_token=reservation.lease_token
    )
    with refuses():
        await open_part(stage.engine.database, a_part(unattached, generation))


@check
async def a_superseded_generation_takes_no_rows(stage: Stage) -> None:
    first = await declared(stage.engine)
    await declared(stage.engine, orders(2))
    await cut_over(stage, 2)
    with refuses(Conflict):
        await open_part(stage.engine.database, a_part(await a_running_task(stage.harness), first))


@check
async def another_tenants_dataset_takes_no_rows(stage: Stage) -> None:
    await another_tenant(stage)
    theirs = await declare.declare(stage.engine.database, OTHER_TENANT_ID, orders())
    with refuses():
        await open_part(stage.engine.database, a_part(await a_running_task(stage.harness), theirs))


@check
async def a_task_writes_in_several_parts(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness)
    commits = [await staged(stage.engine, lease, generation, rows(number), number=number) for number in range(3)]
    await stage.harness.settle(lease, completed(*commits))
    assert len(await seen(stage.engine)) == 3


@check
async def a_lost_attempt_does_not_add_to_the_next_ones_part(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness, max_losses=3)
    late = a_part(lease, generation)
    await open_part(stage.engine.database, late)
    again = await lost_and_claimed_again(stage, lease)
    await sweep_stages_once(stage.engine.database)
    await open_part(stage.engine.database, a_part(again, generation))
    with refuses(LeaseLost):
        await stage_batch(stage.engine.database, late, [(1, 1)])


@check
async def a_batch_said_twice_counts_once(stage: Stage) -> None:
    """The answer to the first was lost on the way."""
    generation = await declared(stage.engine)
    part = a_part(await a_running_task(stage.harness), generation)
    await open_part(stage.engine.database, part)
    await stage_batch(stage.engine.database, part, [(1, 1), (2, 2)])
    part.rows = 0
    await stage_batch(stage.engine.database, part, [(1, 1), (2, 2)])
    assert await stages(stage.engine) == (1, 2)


@check
async def rows_need_the_current_attempt(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness)
    commit = await staged(stage.engine, lease, generation, rows(1))
    stale = forged(lease, attempt=lease.attempt + 1)
    async with stage.engine.database.transaction() as session:
        settled = await settle(session, stage.engine.catalog, [report_of(stale.claimed, completed(commit))])
    assert (len(settled.refused), await seen(stage.engine)) == (1, [])


@check
async def a_commit_that_waited_for_a_cut_over_finds_itself_superseded(stage: Stage) -> None:
    first, second = await declared(stage.engine), await declared(stage.engine, orders(2))
    lease = await a_running_task(stage.harness)
    commit = await staged(stage.engine, lease, first, rows(1))
    async with stage.engine.database.transaction() as session:
        generation = await cutover._locked(session, 1, "orders", second.dataset.version)
        assert await cutover.cut_over_in(session, generation, BY) is None
        late = asyncio.ensure_future(stage.harness.settle(lease, completed(commit)))
        await stage.waits(late)
    await late
    [attempt] = await stage.harness.attempts(lease.task_id)
    assert attempt.code == "dataset_superseded"


@check
async def who_waits_for_a_dataset_holds_none_of_its_generations(stage: Stage) -> None:
    """A task that cuts over and an operator who does would otherwise wait for each other."""
    await declared(stage.engine)
    second = await declared(stage.engine, orders(2))
    lease = await a_running_task(stage.harness)
    over = Commit(generation_id=second.generation_id, mode=Mode.CUT_OVER)
    async with stage.engine.database.transaction() as operator, stage.impatient() as other:
        await operator.fetch(sql("lock_dataset"), 1, "orders")
        late = asyncio.ensure_future(stage.harness.settle(lease, completed(over)))
        await stage.waits(late)
        async with other.transaction():
            assert await other.fetch(sql("lock_generations"), [second.generation_id], [])
    await late
    assert (await states(stage))[2] == "current"


@check
async def what_a_lost_attempt_staged_is_swept(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness, max_losses=3)
    await staged(stage.engine, lease, generation, rows(1))
    again = await lost_and_claimed_again(stage, lease)
    commit = await staged(stage.engine, again, generation, rows(1))
    await stage.harness.settle(again, completed(commit))
    await sweep_stages_once(stage.engine.database)
    assert await stages(stage.engine) == (0, 0)
    third = await a_running_task(stage.harness, max_losses=3)
    await staged(stage.engine, third, generation, rows(2))
    await lost_and_claimed_again(stage, third)
    await sweep_stages_once(stage.engine.database)
    assert await stages(stage.engine) == (0, 0)


@check
async def sweepers_do_not_wait_for_one_another(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness, max_losses=3)
    await staged(stage.engine, lease, generation, rows(1))
    await lost_and_claimed_again(stage, lease)
    async with stage.engine.database.transaction() as first, stage.impatient() as second:
        assert len(await first.fetch(sql("stale_stages"), 10)) == 1
        async with second.transaction():
            assert await second.fetch(sql("stale_stages"), 10) == []


@check
async def sweeping_leaves_the_part_of_the_next_attempt(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness, max_losses=3)
    await staged(stage.engine, lease, generation, rows(1))
    again = await lost_and_claimed_again(stage, lease)
    commit = await staged(stage.engine, again, generation, rows(1))
    await sweep_stages_once(stage.engine.database)
    await stage.harness.settle(again, completed(commit))
    assert len(await seen(stage.engine)) == 1


@check
async def young_commits_are_kept(stage: Stage) -> None:
    await a_task_writes_in_several_parts(stage)
    await forget_commits_once(stage.engine.database, days=1)
    assert await stage.value("select count(*) from holdfast.dataset_commit") == 3
    await stage.clock.advance("2d")
    await forget_commits_once(stage.engine.database, days=1)
    assert await stage.value("select count(*) from holdfast.dataset_commit") == 0


@check
async def a_generation_that_leaves_gets_no_more_work(stage: Stage) -> None:
    await declared(stage.engine)
    second = await declared(stage.engine, orders(2))

    async def build() -> None:
        async with stage.engine.database.transaction() as session:
            await add_builds(session, second, [7])

    async with stage.engine.database.transaction() as session:
        generation = await cutover._locked(session, 1, "orders", 2)
        await session.fetch(sql("roll_back"), generation.dataset_id, 2, [b"b"], True, "", "")
        late = asyncio.ensure_future(build())
        await stage.waits(late)
    with refuses(Conflict):
        await late
    with refuses(Conflict):
        await build()


@check
async def a_cut_over_leaves_other_generations_as_they_are(stage: Stage) -> None:
    for version in (1, 2, 3):
        await declared(stage.engine, orders(version))
    await cut_over(stage, 2)
    assert await states(stage) == {1: "superseded", 2: "current", 3: "building"}


@check
async def the_current_generation_cannot_be_dropped(stage: Stage) -> None:
    await declared(stage.engine)
    with refuses(Conflict):
        await cutover.drop(stage.engine.database, 1, "orders", 1, BY)
    assert await states(stage) == {1: "current"}


async def rolled_back(stage: Stage, *, is_kept: bool) -> int:
    await declared(stage.engine)
    second = await declared(stage.engine, orders(2))
    await cutover.roll_back(stage.engine.database, 1, "orders", 2, BY, is_kept=is_kept)
    return second.generation_id


@check
async def tables_are_dropped_once(stage: Stage) -> None:
    """A pass that comes second finds nothing to do."""
    generation_id = await rolled_back(stage, is_kept=False)
    for _ in range(2):
        await cutover._unmake(stage.engine.database, generation_id)
    assert (await states(stage))[2] == "dropped"


@check
async def a_kept_generation_keeps_its_tables(stage: Stage) -> None:
    generation_id = await rolled_back(stage, is_kept=True)
    await cutover._unmake(stage.engine.database, generation_id)
    await finish_rollbacks_once(stage.engine.database, stage.engine.catalog, grace_seconds=1.0)
    assert (await states(stage))[2] == "rolled back"
    assert await stage.value("select count(*) from holdfast_data.orders_v2") == 0


@check
async def who_drops_tables_does_not_wait_for_another(stage: Stage) -> None:
    generation_id = await rolled_back(stage, is_kept=False)
    async with stage.engine.database.transaction() as first, stage.impatient() as second:
        assert await first.fetch(sql("lock_leaving"), generation_id)
        async with second.transaction():
            assert await second.fetch(sql("lock_leaving"), generation_id) == []
