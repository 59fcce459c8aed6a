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


@pytest.mark.representative(one_in=4)
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


@pytest.fixture
def filing(app):
    """A list, each member of it appended to a partition of its own; and one task that writes where it is told."""
    app.dataset("log", columns={"line": "text"})
    now = {"lines": ["a", "b", "c"], "at": "one"}

    @app.action(max_retries=0)
    def listing() -> list:
        return now["lines"]

    @app.action(max_retries=0)
    async def put(ctx: hf.Context, line: str) -> None:
        await ctx.dataset("log").append([[line]], partition=line)

    @app.action(max_retries=0)
    async def write(ctx: hf.Context) -> None:
        if now["at"] == "nowhere":
            return
        if now["at"] == "never":
            raise hf.Fatal("not yet")
        await getattr(ctx.dataset("log"), now.get("mode", "append"))([[now["at"]]], partition=now["at"])

    @app.flow
    def each():
        return put.map(line=listing())

    @app.flow
    def inner(lines: list):
        return put.map(line=lines)

    @app.flow
    def outer():
        return inner(lines=listing())

    @app.flow
    def one():
        return write()

    return now | {"now": now, "each": each, "outer": outer, "one": one}


@pytest.mark.representative(one_in=4)
@pytest.mark.parametrize("name", ["each", "outer"])
@pytest.mark.parametrize("lines", [["a", "b"], [], ["a", "d"]])
async def test_rows_of_items_that_were_replaced_go_from_every_partition(app, client, engine, filing, name, lines):
    await run_until_idle(app, engine)
    run = await client.start(filing[name])
    await run_until_idle(app, engine)
    filing["now"]["lines"] = lines
    await run.retry("again", only="listing")
    await run_until_idle(app, engine)
    assert await logged_lines(engine) == lines
    assert not await engine.database.fetch("select from holdfast.dataset_owed")


@pytest.mark.parametrize(
    ("again", "left"),
    [
        ({"at": "two"}, ["two"]),
        ({"at": "two", "mode": "replace"}, ["two"]),
        ({"at": "one"}, ["one"]),
        ({"at": "nowhere"}, []),
        ({"at": "never"}, ["one"]),
    ],
)
async def test_a_task_that_runs_again_leaves_no_row_elsewhere(app, client, engine, filing, again, left):
    """Where it fails again, it has brought nothing in the place of what it had."""
    await run_until_idle(app, engine)
    run = await client.start(filing["one"])
    await run_until_idle(app, engine)
    filing["now"].update(again)
    await run.retry("again", only="write")
    await run_until_idle(app, engine)
    assert await logged_lines(engine) == left


async def test_what_is_owed_is_found_where_commits_are_forgotten(app, client, engine, filing):
    await run_until_idle(app, engine)
    run = await client.start(filing["one"])
    await run_until_idle(app, engine)
    await engine.database.fetch("delete from holdfast.dataset_commit")
    filing["now"]["at"] = "two"
    await run.retry("again", only="write")
    await run_until_idle(app, engine)
    assert await logged_lines(engine) == ["two"]


async def test_rows_that_an_older_worker_brought_are_not_taken_for_what_was_owed(app, client, engine, filing):
    await run_until_idle(app, engine)
    run = await client.start(filing["one"])
    await run_until_idle(app, engine)
    await run.retry("again", only="write")
    [owed] = await engine.database.fetch("select * from holdfast.dataset_owed")
    await run_until_idle(app, engine)
    await engine.database.fetch("insert into holdfast.dataset_owed values ($1, $2, $3, $4, $5)", *owed)
    await run_until_idle(app, engine)
    assert await logged_lines(engine) == ["one"]


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
