"""`ctx.dataset(…)` in real workers: coroutines, threads and processes, good rows and bad ones."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Binding, Edge, Node, NodeKind
from holdfast.errors import Conflict, Invalid
from holdfast.settings.settings import Settings
from holdfast.testing.idle import run_until_idle
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.start_orders import Orders

ORDERS = {"order_id": "bigint", "day": "date", "note": "jsonb"}
ISOLATED = """
import holdfast as hf

app = hf.App("shop")
app.dataset("orders", columns={"order_id": "bigint", "day": "date", "note": "jsonb"}, key="order_id")

@app.action(isolation="process")
def blocking(ctx: hf.Context, first: int) -> int:
    return ctx.dataset("orders").append({"order_id": n} for n in range(first, first + 3))

@app.action(isolation="process")
async def awaiting(ctx: hf.Context, first: int) -> int:
    return await ctx.dataset("orders").append({"order_id": n} for n in range(first, first + 3))
"""


@pytest.fixture
def app(holdfast_url):
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url))
    made.dataset("orders", columns=ORDERS, key="order_id")
    return made


@pytest.fixture
async def client(app):
    async with app.client() as opened:
        yield opened


def rows(*order_ids: int):
    return [{"order_id": one, "day": "2026-11-15", "note": {"n": one}} for one in order_ids]


async def ids(engine):
    return [row[0] for row in await engine.database.fetch("select order_id from holdfast_data.orders order by 1")]


async def test_a_coroutine_appends_dicts_sequences_and_streams(app, client, engine):
    async def streamed():
        for one in rows(5, 6):
            await asyncio.sleep(0)
            yield one

    @app.action
    async def ingest(ctx: hf.Context) -> list[int]:
        dataset = ctx.dataset("orders")
        counts = [await dataset.append(rows(1, 2)), await dataset.append(iter([(3, None, [1]), (4, None, None)]))]
        return [*counts, await dataset.append(streamed(), partition="late"), await dataset.count()]

    task = await client.enqueue(ingest)
    await run_until_idle(app, engine)
    assert await task.result(timeout=5) == [2, 2, 2, 0]
    assert await ids(engine) == [1, 2, 3, 4, 5, 6]


async def test_a_plain_function_writes_without_await(app, client, engine):
    @app.action
    def ingest(ctx: hf.Context) -> list[int]:
        dataset = ctx.dataset("orders")
        return [dataset.append(one for one in rows(1, 2)), dataset.replace(rows(3), partition="x"), dataset.count()]

    task = await client.enqueue(ingest)
    await run_until_idle(app, engine)
    assert await task.result(timeout=5) == [2, 1, 0]
    assert await ids(engine) == [1, 2, 3]


@pytest.mark.slow("it runs many tasks with a real worker; test_a_node_that_is_run_again_brings_its_rows_once is fast")
async def test_a_process_of_its_own_writes_too(tmp_path, holdfast_url, engine):
    path = tmp_path / "isolated_shop.py"
    path.write_text(ISOLATED)
    from holdfast.authoring.loader import load_app

    app = load_app(f"{path}:app")
    app.configure(Settings(url=holdfast_url))
    orders = Orders(app_ref=f"{path}:app", url=holdfast_url, settings=app.settings, queues=None, slots=2, name="test")
    worker = Worker(engine, app.actions, slots=2, isolator=Isolated(orders), datasets=app.datasets)
    running = asyncio.ensure_future(worker.run())
    async with app.client() as client:
        tasks = [await client.enqueue("shop.blocking", first=1), await client.enqueue("shop.awaiting", first=11)]
        assert [await task.result(timeout=30) for task in tasks] == [3, 3]
    worker.stop()
    await running
    assert await ids(engine) == [1, 2, 3, 11, 12, 13]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"order_id": "7"}, "order_id is not bigint: '7'"),
        ({"day": "2026-11-15"}, "order_id is missing"),
        ({"order_id": 7, "dya": None}, "dya is not a column"),
        ({"order_id": 7, "day": "15.11.2026"}, "day is not date"),
        ({"order_id": 2**63}, "64 bits"),
        ({"order_id": 7, "note": float("nan")}, "note is not jsonb"),
        ({"order_id": 7, "note": "a\x00b"}, "NUL"),
        ((1, 2), "has 2 values"),
        (7, "neither a mapping nor a sequence"),
    ],
)
async def test_a_bad_row_fails_its_task_by_number_and_stores_nothing(app, client, engine, row, words, before=10):
    @app.action
    async def ingest(ctx: hf.Context) -> None:
        await ctx.dataset("orders").append([*rows(*range(100, 100 + before)), row])

    task = await client.enqueue(ingest)
    await run_until_idle(app, engine)
    failure = await engine.database.fetchrow("select code, message, decision, reason from holdfast.failure")
    assert (failure["code"], failure["decision"], failure["reason"]) == ("dataset_row_invalid", "stop", "validation")
    assert f"Row {before + 1} of orders" in failure["message"] and words in failure["message"]
    assert await task.wait(timeout=5) == "failed"
    assert await ids(engine) == []


async def test_a_bad_row_behind_a_batch_undoes_the_batch(app, client, engine):
    row, words = (1, 2), "has 2 values"
    await test_a_bad_row_fails_its_task_by_number_and_stores_nothing(app, client, engine, row, words, before=6_000)


async def test_what_raised_is_not_committed_also_when_the_action_goes_on(app, client, engine):
    @app.action
    async def ingest(ctx: hf.Context) -> None:
        try:
            await ctx.dataset("orders").append([*rows(1), {"order_id": None}])
        except hf.Invalid:
            await ctx.dataset("orders").append(rows(2))

    await client.enqueue(ingest)
    await run_until_idle(app, engine)
    assert await ids(engine) == [2]


async def test_an_action_that_fails_after_writing_leaves_nothing(app, client, engine):
    @app.action(max_retries=1, retry={"base_backoff_secs": 0.0})
    async def ingest(ctx: hf.Context) -> None:
        await ctx.dataset("orders").append(rows(ctx.attempt))
        if ctx.attempt == 1:
            raise ConnectionResetError("connection reset by peer")

    await client.enqueue(ingest)
    await run_until_idle(app, engine)
    assert await ids(engine) == [2]


@pytest.mark.slow("it runs many tasks with a real worker; test_a_node_that_is_run_again_brings_its_rows_once is fast")
async def test_a_long_stream_is_never_whole_in_memory(app, client, engine):
    count, size = 25_000, 1_000

    @app.action
    def ingest(ctx: hf.Context) -> int:
        text = "x" * size
        tracemalloc.start()
        ctx.dataset("orders").append({"order_id": n, "note": f"{n}{text}"} for n in range(count))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    task = await client.enqueue(ingest)
    await run_until_idle(app, engine, seconds_max=60)
    assert await task.result(timeout=5) < count * size / 2
    assert await engine.database.fetchval("select count(*) from holdfast_data.orders") == count


async def test_two_versions_are_written_together_and_the_newest_is_the_default(app, client, engine):
    app.dataset("orders", version=2, columns={**ORDERS, "source": "text"}, key="order_id")

    @app.action
    async def ingest(ctx: hf.Context) -> None:
        await ctx.dataset("orders", version=1).append(rows(1))
        await ctx.dataset("orders").append([{**row, "source": "file"} for row in rows(1, 2)])

    await client.enqueue(ingest)
    await run_until_idle(app, engine)
    assert await ids(engine) == [1]
    assert await engine.database.fetchval("select count(*) from holdfast_data.orders_v2") == 2


async def test_an_undeclared_dataset_is_named(app, client, engine):
    @app.action
    async def ingest(ctx: hf.Context) -> None:
        await ctx.dataset("odrers").append([])

    await client.enqueue(ingest)
    await run_until_idle(app, engine)
    assert await engine.database.fetchval("select code from holdfast.failure") == "dataset_not_declared"


async def test_a_worker_whose_dataset_changed_without_a_version_refuses_to_start(app, engine, holdfast_url):
    await run_until_idle(app, engine)
    other = hf.App("shop", settings=hf.Settings(url=holdfast_url))
    other.dataset("orders", columns={"order_id": "text"})
    with pytest.raises(Conflict):
        await run_until_idle(other, engine)


async def test_a_node_that_is_run_again_brings_its_rows_once(app, client, engine):
    """A re-drive runs completed nodes downstream of a failed one again; without a key their rows must not double."""
    app.dataset("log", columns={"line": "text"})
    breaks = {"is_broken": True}

    @app.action(max_retries=0)
    async def first(ctx: hf.Context) -> None:
        await ctx.dataset("log").append([[f"first {ctx.attempt}"]])

    @app.action(max_retries=0)
    async def second(ctx: hf.Context) -> None:
        if breaks["is_broken"]:
            raise hf.Fatal("not yet")
        await ctx.dataset("log").append([["second"]])
        await ctx.dataset("log").append([["second too"]])

    flow = FlowDefinition(
        name="lines",
        nodes=(Node(name="first", action="shop.first"), Node(name="second", action="shop.second")),
        edges=(Edge(upstream="first", downstream="second", is_order_only=True),),
    )
    run = await client.start(flow)
    await run_until_idle(app, engine)
    breaks["is_broken"] = False
    await run.retry("fixed")
    await run_until_idle(app, engine)
    await run.retry("all of it", only="first")
    await run_until_idle(app, engine)
    lines = [row[0] for row in await engine.database.fetch("select line from holdfast_data.log order by 1")]
    assert lines == ["first 2", "second", "second too"]


async def test_items_of_a_map_commit_each_their_own(app, client, engine):
    @app.action
    async def ingest(ctx: hf.Context, first: int) -> int:
        return await ctx.dataset("orders").append(rows(first, first + 1))

    @app.action
    async def numbers() -> list[int]:
        return [1, 3, 5, 6]

    flow = FlowDefinition(
        name="many",
        nodes=(
            Node(name="numbers", action="shop.numbers"),
            Node(name="ingest", action="shop.ingest", kind=NodeKind.MAP, map_over="first"),
        ),
        edges=(Edge(upstream="numbers", downstream="ingest", bindings=(Binding(input_key="first"),)),),
    )
    run = await client.start(flow)
    await run_until_idle(app, engine)
    assert await run.wait(timeout=5) == "completed"
    assert await ids(engine) == [1, 2, 3, 4, 5, 6, 7]


def test_declaring_a_version_twice_differently_is_refused(app):
    app.dataset("orders", columns=ORDERS, key="order_id")
    with pytest.raises(Invalid):
        app.dataset("orders", columns=ORDERS)
