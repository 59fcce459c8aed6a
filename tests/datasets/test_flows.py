"""Datasets that flows write to: what runs again or in the place of others, and cut-overs from within."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.testing.idle import run_until_idle


@pytest.fixture
def app(holdfast_url):
    return hf.App("shop", settings=hf.Settings(url=holdfast_url))


@pytest.fixture
async def client(app):
    async with app.client() as opened:
        yield opened


@pytest.fixture
def logging_app(app):
    """A list, each member of it appended to a log without a key, and the same through a flow of its own."""
    app.dataset("log", columns={"line": "text"})
    listed = {"lines": ["a", "b", "c"]}

    @app.action(max_retries=0)
    def listing() -> list:
        return listed["lines"]

    @app.action(max_retries=0)
    async def put(ctx: hf.Context, line: str) -> None:
        await ctx.dataset("log").append([[line]])
        if line in listed.get("bad", ()):
            raise hf.Fatal("not yet")

    @app.flow
    def logged():
        return put.map(line=listing())

    @app.flow
    def inner(lines: list):
        return put.map(line=lines)

    @app.flow
    def outer():
        return inner(lines=listing())

    return {"logged": logged, "outer": outer, "listed": listed}


async def logged_lines(engine) -> list[str]:
    return [row[0] for row in await engine.database.fetch("select line from holdfast_data.log order by 1")]


@pytest.mark.parametrize("name", ["logged", "outer"])
@pytest.mark.parametrize("lines", [["a", "b", "c"], ["c", "d"]])
async def test_items_that_take_the_place_of_others_take_their_rows_back(app, client, engine, logging_app, name, lines):
    await run_until_idle(app, engine)
    run = await client.start(logging_app[name])
    await run_until_idle(app, engine)
    assert await logged_lines(engine) == ["a", "b", "c"]
    logging_app["listed"]["lines"] = lines
    await run.retry("again", only="listing")
    await run_until_idle(app, engine)
    assert (await run.show()).state == "completed"
    assert await logged_lines(engine) == lines


async def test_a_run_that_was_replaced_keeps_no_version_from_being_cut_over(app, client, engine, logging_app):
    logging_app["listed"]["bad"] = ["b"]
    await run_until_idle(app, engine)
    run = await client.start(logging_app["outer"])
    await run_until_idle(app, engine)
    [generation] = await client.datasets.generations("log")
    assert generation.failed == 1
    del logging_app["listed"]["bad"]
    await run.retry("again", only="listing")
    await run_until_idle(app, engine)
    [generation] = await client.datasets.generations("log")
    assert (generation.failed, generation.unfinished) == (0, 0)
    assert await logged_lines(engine) == ["a", "b", "c"]


async def test_a_sub_flow_of_what_builds_a_version_may_cut_over_to_it(app, client, engine):
    app.dataset("orders", columns={"n": "bigint"}, key="n")
    second = app.dataset("orders", version=2, columns={"n": "bigint", "m": "bigint"}, key="n")

    @app.action(max_retries=0)
    async def fill(ctx: hf.Context, n: int) -> int:
        return await ctx.dataset("orders", 2).append([{"n": n, "m": n}])

    @app.action(max_retries=0)
    async def publish(ctx: hf.Context, n: int) -> None:
        await ctx.dataset("orders", 2).cut_over()

    @app.flow
    def load(n: int):
        return publish(n=fill(n=n))

    @app.flow
    def nightly(n: int):
        return load(n=n)

    @app.flow
    def yearly(n: int):
        return nightly(n=n)

    await run_until_idle(app, engine)
    [run] = await client.datasets.build(second, yearly, [{"n": 1}])
    await run_until_idle(app, engine)
    assert (await run.show()).state == "completed"
    assert await engine.database.fetchval("select m from holdfast_data.orders") == 1
