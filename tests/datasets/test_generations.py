"""Generations: declared once, built beside the current one, cut over whole, rolled back with their work."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.datasets.hands import COLUMNS, completed, declared, orders, rows, seen, staged
from tests.waiting import waits

import holdfast as hf
from holdfast.core.datasets.dataset import Commit, Mode
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.datasets import cutover as verbs
from holdfast.engine.datasets.cutover import CutoverRequest, finish_rollbacks_once
from holdfast.engine.datasets.declare import add_builds, list_generations
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.statements import sql
from holdfast.testing.factories import a_failure, a_running_task, a_task

BY = CutoverRequest(actor="tester", reason="because")
WIDE = {"order_id": "bigint", "note": "text", "cents": "numeric"}


async def cut_over(engine, version, **options):
    return await verbs.cut_over(engine.database, 1, "orders", version, BY, **options)


async def roll_back(engine, version, **options):
    shown = await verbs.roll_back(engine.database, 1, "orders", version, BY, **options)
    await finish_rollbacks_once(engine.database, engine.catalog, grace_seconds=5.0)
    return shown


async def states(engine):
    return {view.version: view.state for view in await list_generations(engine.database, 1)}


async def write(harness, generation, given, **options):
    lease = await a_running_task(harness)
    await harness.settle(lease, completed(await staged(harness.engine, lease, generation, given, **options)))
    return lease


async def tables(engine):
    found = await engine.database.fetch(
        "select table_name from information_schema.tables where table_schema = 'holdfast_data' order by 1"
    )
    return [row[0] for row in found]


async def test_the_first_version_is_current_at_once_and_the_next_is_not(engine, generation):
    await declared(engine, orders(2, columns=WIDE))
    assert await states(engine) == {1: "current", 2: "building"}
    assert await tables(engine) == ["orders", "orders_v1", "orders_v1_staged", "orders_v2", "orders_v2_staged"]


async def test_declaring_again_changes_nothing_also_from_many_at_once(engine):
    found = await asyncio.gather(*(declared(engine) for _ in range(8)))
    assert len({one.generation_id for one in found}) == 1


@pytest.mark.parametrize(
    "changed", [{"columns": WIDE}, {"key": ()}, {"columns": {**COLUMNS, "cents": "numeric"}}, {"schema": "public"}]
)
async def test_a_changed_dataset_needs_a_new_version(engine, generation, changed):
    with pytest.raises(Conflict) as refused:
        await declared(engine, orders(**changed))
    assert refused.value.code == "dataset_version_changed"


async def test_readers_see_the_new_columns_and_rows_from_the_cut_over_on(harness, engine, generation):
    await write(harness, generation, rows(1))
    second = await declared(engine, orders(2, columns=WIDE))
    await write(harness, second, [{"order_id": 1, "note": "new", "cents": "1.50"}])
    assert await seen(engine) == [(1, 100)]
    assert await cut_over(engine, 2)
    [row] = await engine.database.fetch("select * from holdfast_data.orders")
    assert (list(row.keys()), row["note"], str(row["cents"])) == (["order_id", "note", "cents"], "new", "1.50")
    assert await states(engine) == {1: "superseded", 2: "current"}
    assert not await cut_over(engine, 2)


async def test_one_can_go_back_to_a_version_that_is_kept(harness, engine, generation):
    await write(harness, generation, rows(1))
    await declared(engine, orders(2, columns=WIDE))
    await cut_over(engine, 2)
    await cut_over(engine, 1)
    assert (await seen(engine), await states(engine)) == ([(1, 100)], {1: "current", 2: "superseded"})


@pytest.mark.superuser
async def test_rights_on_the_view_outlive_a_change_of_columns(engine, generation):
    await engine.database.fetch("create role dataset_reader_x nologin")
    try:
        await engine.database.fetch("grant select on holdfast_data.orders to dataset_reader_x")
        await declared(engine, orders(2, columns=WIDE))
        await cut_over(engine, 2)
        right = "select has_table_privilege('dataset_reader_x', 'holdfast_data.orders', 'select')"
        assert await engine.database.fetchval(right)
        async with engine.database.transaction() as session:
            await session.execute("grant usage on schema holdfast_data to dataset_reader_x")
            await session.execute("set local role dataset_reader_x")
            assert await session.fetch("select * from holdfast_data.orders") == []
    finally:
        await engine.database.fetch("drop owned by dataset_reader_x")
        await engine.database.fetch("drop role dataset_reader_x")


async def test_a_view_of_somebody_elses_on_top_forbids_other_columns_but_not_more(engine, generation):
    await engine.database.fetch("create view public.mine as select order_id from holdfast_data.orders")
    await declared(engine, orders(2, columns={**COLUMNS, "note": "text"}))
    await cut_over(engine, 2)
    await declared(engine, orders(3, columns=WIDE))
    with pytest.raises(Conflict) as refused:
        await cut_over(engine, 3)
    assert refused.value.code == "dataset_view_in_use"
    assert await states(engine) == {1: "superseded", 2: "current", 3: "building"}


async def test_a_table_that_is_somebody_elses_is_never_touched(engine):
    await engine.database.fetch("create table holdfast_data.orders (mine int)")
    with pytest.raises(Conflict) as refused:
        await declared(engine)
    assert refused.value.code == "dataset_name_taken"
    assert await engine.database.fetchval("select count(*) from holdfast.dataset") == 0


async def test_a_schema_that_is_not_there_is_refused(engine):
    with pytest.raises(Invalid) as refused:
        await declared(engine, orders(schema="elsewhere"))
    assert refused.value.code == "dataset_schema_missing"


async def test_a_cut_over_waits_for_what_builds_the_version(harness, engine, generation):
    second = await declared(engine, orders(2))
    task = await harness.enqueue(a_task())
    async with engine.database.transaction() as session:
        await add_builds(session, second, [int(task.task_id)])
    with pytest.raises(Conflict) as refused:
        await cut_over(engine, 2)
    assert refused.value.code == "dataset_build_unfinished"
    lease = await harness.claim_task(task.task_id)
    await harness.settle(lease, completed(await staged(engine, lease, second, rows(1))))
    assert await cut_over(engine, 2)


async def test_a_build_that_failed_keeps_the_version_back_unless_forced(harness, engine, generation):
    """A task that wrote to the version and failed for good would leave a gap."""
    second = await declared(engine, orders(2))
    lease = await a_running_task(harness, max_retries=0)
    await staged(engine, lease, second, rows(1))
    await harness.settle(lease, Failed(a_failure()))
    with pytest.raises(Conflict) as refused:
        await cut_over(engine, 2)
    assert "1 failed" in str(refused.value)
    assert await cut_over(engine, 2, is_forced=True)


async def test_a_reader_with_an_older_snapshot_is_told_to_begin_again(harness, engine, generation):
    """It would see a part of the new generation, or none."""
    await write(harness, generation, rows(1))
    second = await declared(engine, orders(2))
    reader = await asyncpg.connect(engine.database.url)
    try:
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetchval("select 1 from holdfast.tenant")
            await write(harness, second, rows(1, 2))
            await cut_over(engine, 2)
            with pytest.raises(asyncpg.SerializationError):
                await reader.fetch("select * from holdfast_data.orders")
        assert len(await reader.fetch("select * from holdfast_data.orders")) == 2
    finally:
        await reader.close()


async def test_a_reader_that_does_not_let_go_makes_the_cut_over_give_up(engine, generation):
    await declared(engine, orders(2))
    async with engine.database.transaction() as session:
        await session.fetch("select * from holdfast_data.orders")
        with pytest.raises(Conflict) as refused:
            await cut_over(engine, 2)
    assert refused.value.code == "dataset_busy"
    assert await states(engine) == {1: "current", 2: "building"}


async def test_readers_polling_through_cut_overs_always_see_a_whole_generation(harness, engine, generation):
    """Version n holds n * 10 rows, all with n in them; another count or a mixture would be half a generation."""
    await write(harness, generation, rows(*range(10), cents=1))
    stopping = asyncio.Event()

    async def poll() -> set[tuple[int, ...]]:
        looks = set()
        reader = await asyncpg.connect(engine.database.url)
        while not stopping.is_set():
            query = "select count(*), min(cents), max(cents) from holdfast_data.orders"
            looks.add(tuple(await reader.fetchrow(query)))
        await reader.close()
        return looks

    readers = [asyncio.ensure_future(poll()) for _ in range(3)]
    for version in range(2, 8):
        fresh = await declared(engine, orders(version, columns=COLUMNS if version % 2 else {**COLUMNS, "note": "text"}))
        for part in range(version):
            given = rows(*range(part * 10, part * 10 + 10), cents=version)
            await write(harness, fresh, given)
        await cut_over(engine, version)
    stopping.set()
    looks = set().union(*await asyncio.gather(*readers))
    assert looks <= {(version * 10, version, version) for version in range(1, 8)} and len(looks) > 1


async def test_rolling_back_cancels_unfinished_tasks_and_drops_the_tables(harness, engine, generation):
    second = await declared(engine, orders(2))
    running = await a_running_task(harness)
    commit = await staged(engine, running, second, rows(1))
    queued, other = await harness.enqueue(a_task()), await harness.enqueue(a_task())
    async with engine.database.transaction() as session:
        await add_builds(session, second, [int(queued.task_id)])
    await roll_back(engine, 2)
    assert await states(engine) == {1: "current", 2: "dropped"}
    assert await tables(engine) == ["orders", "orders_v1", "orders_v1_staged"]
    found = [await harness.task(task_id) for task_id in (queued.task_id, running.task_id, other.task_id)]
    assert [(task.state, task.cancel_at is not None) for task in found] == [
        ("canceled", False),
        ("running", True),
        ("queued", False),
    ]
    await harness.settle(running, completed(commit))
    assert (await harness.task(running.task_id)).state == "canceled"


async def test_rolling_back_a_kept_version_leaves_its_tables_until_it_is_dropped(harness, engine, generation):
    second = await declared(engine, orders(2))
    await write(harness, second, rows(1))
    await roll_back(engine, 2, is_kept=True)
    assert "orders_v2" in await tables(engine)
    await verbs.drop(engine.database, 1, "orders", 2, BY)
    await finish_rollbacks_once(engine.database, engine.catalog, grace_seconds=5.0)
    assert "orders_v2" not in await tables(engine)


async def test_rolling_back_the_current_version_shows_the_one_before(harness, engine, generation):
    await write(harness, generation, rows(1))
    second = await declared(engine, orders(2))
    await write(harness, second, rows(2))
    await cut_over(engine, 2)
    assert await roll_back(engine, 2) == 1
    assert (await seen(engine), await states(engine)) == ([(1, 100)], {1: "current", 2: "dropped"})


async def test_a_commit_to_a_version_that_was_rolled_back_fails_for_good(harness, engine, generation):
    second = await declared(engine, orders(2))
    lease = await a_running_task(harness)
    commit = await staged(engine, lease, second, rows(1))
    await verbs.roll_back(engine.database, 1, "orders", 2, BY)
    await harness.settle(lease, completed(commit))
    [attempt] = await harness.attempts(lease.task_id)
    assert (attempt.code, attempt.decision) == ("dataset_rolled_back", "stop")


@pytest.mark.parametrize(
    ("verb", "version", "error", "code"),
    [
        ("roll_back", 1, Conflict, "dataset_nothing_before"),
        ("drop", 1, Conflict, "dataset_wrong_state"),
        ("drop", 2, Conflict, "dataset_wrong_state"),
        ("cut_over", 9, NotFound, "dataset_version_not_found"),
        ("roll_back", 9, NotFound, "dataset_version_not_found"),
    ],
)
async def test_what_cannot_be_is_refused(engine, generation, verb, version, error, code):
    await declared(engine, orders(2))
    with pytest.raises(error) as refused:
        await getattr(verbs, verb)(engine.database, 1, "orders", version, BY)
    assert refused.value.code == code


async def test_a_version_that_is_gone_cannot_be_cut_over_or_built(engine, harness, generation):
    second = await declared(engine, orders(2))
    await roll_back(engine, 2)
    with pytest.raises(Conflict):
        await cut_over(engine, 2)
    with pytest.raises(Conflict) as refused:
        async with engine.database.transaction() as session:
            await add_builds(session, second, [1])
    assert refused.value.code == "dataset_not_open"


async def test_a_task_cuts_over_with_its_completion(harness, engine, generation):
    second = await declared(engine, orders(2))
    lease = await a_running_task(harness)
    row = await staged(engine, lease, second, rows(1))
    over = Commit(generation_id=second.generation_id, mode=Mode.CUT_OVER, part=1)
    await harness.settle(lease, completed(row, over))
    assert (await seen(engine), await states(engine)) == ([(1, 100)], {1: "superseded", 2: "current"})


async def test_a_task_that_cuts_over_too_early_is_tried_again(harness, engine, generation):
    second = await declared(engine, orders(2))
    slow, eager = await a_running_task(harness), await a_running_task(harness, base_backoff_secs=0)
    commit = await staged(engine, slow, second, rows(1))
    over = Commit(generation_id=second.generation_id, mode=Mode.CUT_OVER)
    await harness.settle(eager, completed(over))
    [attempt] = await harness.attempts(eager.task_id)
    assert (attempt.code, attempt.decision) == ("dataset_build_unfinished", "retry")
    await harness.settle(slow, completed(commit))
    await harness.settle(await harness.claim_task(eager.task_id), completed(over))
    assert (await states(engine))[2] == "current"


async def test_building_hands_in_work_and_says_what_it_is_for(holdfast_url, engine):
    app = hf.App("shop", settings=hf.Settings(url=holdfast_url))
    second = app.dataset("orders", version=2, columns=COLUMNS, key="order_id")

    @app.action
    async def ingest(n: int = 0) -> None: ...

    flow = FlowDefinition(name="backfill", nodes=(Node(name="one", action="shop.ingest"),))
    async with app.client() as client:
        tasks = await client.datasets.build(second, ingest, [{"n": 1}, {"n": 2}])
        [run] = await client.datasets.build(second, flow, [{}])
        [view] = await client.datasets.generations("orders")
        assert (view.unfinished, len(tasks)) == (3, 2)
        await client.datasets.declare(app.dataset("orders", version=3, columns=COLUMNS))
        await client.datasets.cut_over("orders", 3)
        await client.datasets.cut_over("orders", 2, force=True)
        assert await client.datasets.roll_back("orders", 2) == 3
        assert [await task.wait(timeout=5) for task in tasks] == ["canceled", "canceled"]
        assert await run.wait(timeout=5) == "canceled"


async def test_building_under_a_key_may_be_asked_for_again(holdfast_url):
    app = hf.App("shop", settings=hf.Settings(url=holdfast_url))
    second = app.dataset("orders", version=2, columns=COLUMNS, key="order_id")

    @app.action
    async def ingest() -> None: ...

    @app.flow
    def backfill():
        return ingest()

    async with app.client() as client:
        work = backfill.options(key="once")
        [first], [again] = [await client.datasets.build(second, work, [{}]) for _ in range(2)]
        [view] = await client.datasets.generations("orders")
        assert (first.run_id, view.unfinished) == (again.run_id, 1)


async def test_a_generation_that_is_kept_does_not_hide_those_behind_it(engine, generation, monkeypatch):
    monkeypatch.setattr(verbs, "LEAVING_BATCH", 1)
    for version in (2, 3):
        await declared(engine, orders(version))
    await roll_back(engine, 2, is_kept=True)
    await roll_back(engine, 3)
    assert await states(engine) == {1: "current", 2: "rolled back", 3: "dropped"}


async def test_dropping_a_generation_lets_who_stages_to_it_finish_its_batch(harness, engine, generation):
    """Both hold a part before they ask for its table."""
    second = await declared(engine, orders(2))
    lease = await a_running_task(harness)
    await staged(engine, lease, second, rows(1))
    await verbs.roll_back(engine.database, 1, "orders", 2, BY)

    async def stage(session):
        held = (lease.claimed.task_id, lease.token, 0)
        assert await session.fetch(sql("grow_stage"), *held, 1, 1)
        finishing = asyncio.ensure_future(finish_rollbacks_once(engine.database, engine.catalog, grace_seconds=5.0))
        await waits(engine.database, finishing)
        await session.fetch(
            "insert into holdfast_data.orders_v2_staged (order_id, cents, _task_id, _lease, _part, _row)"
            " values (2, 100, $1, $2, $3, 2)",
            *held,
        )
        return finishing

    async with engine.database.transaction() as session:
        finishing = await stage(session)
    await finishing
    assert (await states(engine))[2] == "dropped"
    await harness.settle(lease, Failed(a_failure()))
