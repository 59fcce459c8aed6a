"""Starting runs: by flow, by name, under a key, from a process without the code; and what a worker declares."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.flow.shop import a_shop

import holdfast as hf
from holdfast.client.client import Client
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.idle import run_until_idle


def a_nightly(version: int = 1, bonus: int = 1, app: hf.App | None = None) -> tuple[hf.App, hf.Flow]:
    """An app with one flow; another `bonus` is another content."""
    app = app or a_shop()
    extract, double, add = (app.actions[f"shop.{name}"] for name in ("extract", "double", "add"))

    @app.flow(version=version)
    def nightly(day: str, number: int = 7):
        found = extract(day)
        return {"sum": add(numbers=[found["count"], double(x=number)], bonus=bonus)["sum"], "day": day}

    return app, nightly


@pytest.fixture
def settings(holdfast_url) -> hf.Settings:
    return hf.Settings(url=holdfast_url)


@pytest.fixture
def nightly(settings):
    app, _ = a_nightly()
    app.configure(settings)
    return app


async def declared(app: hf.App, url: str) -> None:
    """A worker of this app came and went."""
    await run_until_idle(app, url)


async def test_a_flow_runs_and_returns_what_it_says(nightly, holdfast_url, clock: DatabaseClock):
    async with nightly.client() as client:
        run = await client.start(nightly.flows["shop.nightly"], day="monday")
        await run_until_idle(nightly, holdfast_url, clock=clock)
        assert await run.result(timeout=20) == {"sum": 18, "day": "monday"}
        assert [(task.node, task.state) for task in await run.tasks()] == [
            ("extract", "completed"), ("double", "completed"), ("add", "completed"),
        ]  # fmt: skip


async def test_every_kind_of_node_runs_as_written(settings, holdfast_url, clock: DatabaseClock):
    app = a_shop()
    app.configure(settings)
    extract, double, add, anything = (app.actions[f"shop.{name}"] for name in ("extract", "double", "add", "anything"))

    @app.flow
    def inner(numbers: list):
        return add(numbers=numbers)["sum"]

    @app.flow
    def outer(day: str):
        found = extract(day)
        doubled = double.node(concurrency=2).map(x=found["rows"])
        total = inner(numbers=doubled)
        paid = hf.wait_for("paid", key=day, after=total)
        go = hf.approval("release", prompt="Ship?", after=paid)
        skipped = anything.named("skipped").when(found["count"] > 100)(x=1)
        last = anything.node("last", after=[go, skipped], trigger_rule="all_done")(paid=paid["amount"], total=total)
        return [doubled, last]

    async with app.client() as client:
        run = await client.start(outer, day="monday")
        await run_until_idle(app, holdfast_url, clock=clock)
        await client.signal("paid", {"amount": 5}, key="monday")
        await run.approve("release")
        await run_until_idle(app, holdfast_url, clock=clock)
        assert await run.wait(timeout=20) == "completed"
        assert await run.output() == [[2, 4, 6], {"paid": 5, "total": 12}]
        assert {task.node: task.state for task in await run.tasks()}["skipped"] == "skipped"


async def test_a_flow_is_started_by_name_and_by_definition(nightly):
    flow = nightly.flows["shop.nightly"]
    async with nightly.client() as client:
        for one in ("shop.nightly", flow, flow.definition, flow.options(tags=["x"])):
            assert (await client.start(one, day="monday")).run_id
        assert len(await client.start_many("shop.nightly", [{"day": str(number)} for number in range(5)])) == 5
        assert await client.start_many(flow, []) == []
        assert await client.engine.database.fetchval("select count(*) from holdfast.run") == 9


@pytest.mark.slow("it runs a large flow or many of them; test_every_kind_of_node_runs_as_written is fast")
async def test_a_process_without_the_code_starts_the_newest_version(settings, nightly, holdfast_url):
    await declared(nightly, holdfast_url)
    newer, _ = a_nightly(version=2, bonus=100)
    await declared(newer, holdfast_url)
    await declared(nightly, holdfast_url)
    async with Client(settings, {}) as client:
        run = await client.start("shop.nightly", day="monday")
        assert await client.engine.catalog.flows.read(1, "shop.nightly") == newer.flows["shop.nightly"].definition
        with pytest.raises(hf.Invalid, match="DAG_VALIDATION_RUN_INPUT_MISSING"):
            await client.start("shop.nightly")
    async with newer_client(settings, newer) as client:
        await run_until_idle(newer, holdfast_url)
        assert (await client.run(run.run_id).result(timeout=20))["sum"] == 117


def newer_client(settings, app) -> Client:
    return Client(settings, app.actions, app.flows)


async def test_a_name_that_nobody_declared_is_not_found(settings, nightly, holdfast_url):
    await declared(nightly, holdfast_url)
    async with Client(settings, {}) as client:
        with pytest.raises(hf.NotFound, match=r"Did you mean shop\.nightly") as caught:
            await client.start("shop.nightyl", day="x")
        assert caught.value.code == "flow_not_found"


async def test_a_changed_flow_without_a_new_version_is_refused_and_says_what_changed(settings, nightly, holdfast_url):
    await declared(nightly, holdfast_url)
    changed, flow = a_nightly(bonus=2)
    changed.configure(settings)
    async with changed.client() as client:
        with pytest.raises(hf.Conflict) as caught:
            await client.start(flow, day="monday")
        assert caught.value.code == "flow_version_changed"
        assert "node add has another config" in caught.value.detail and "version=2" in caught.value.advice
        assert caught.value.fields["changes"] == ["node add has another config"]
    with pytest.raises(hf.Conflict, match="flow_version_changed"):
        await declared(changed, holdfast_url)


async def test_a_flow_with_a_mistake_stops_its_worker_before_it_works(nightly, holdfast_url):
    @nightly.flow
    def broken(day: str):
        if day:
            nightly.actions["shop.double"](x=1)

    with pytest.raises(hf.Invalid, match="DAG_VALIDATION_VALUE_UNKNOWN"):
        await declared(nightly, holdfast_url)


@pytest.mark.slow("it runs a large flow or many of them; test_every_kind_of_node_runs_as_written is fast")
async def test_a_flow_with_an_action_of_others_waits_for_their_worker(settings, holdfast_url, caplog):
    app, other = a_shop(), hf.App("far")
    far = other.action(name="away")(lambda day: day)

    @app.flow
    def mixed(day: str):
        far(day=day)

    with caplog.at_level(logging.WARNING, logger="holdfast.flows"):
        await declared(app, holdfast_url)
    assert "needs the action far.away for node away" in caplog.text
    async with Client(settings, app.actions, app.flows) as client:
        with pytest.raises(hf.NotFound, match="action_not_found"):
            await client.start(mixed, day="x")
        await declared(other, holdfast_url)
        run = await client.start(mixed, day="x")
        await run_until_idle(other, holdfast_url)
        assert await run.wait(timeout=20) == "completed"


async def test_flows_that_run_one_another_without_end_are_refused(settings):
    app = a_shop()
    app.configure(settings)

    @app.flow
    def ping(day: str):
        pong(day)

    @app.flow
    def pong(day: str):
        ping(day)

    async with app.client() as client:
        with pytest.raises(hf.Invalid, match=r"shop\.ping → shop\.pong → shop\.ping") as caught:
            await client.start(ping, day="x")
        assert caught.value.code == "DAG_VALIDATION_FLOW_RECURSIVE"


async def test_flows_nested_too_deep_are_refused(settings):
    app = a_shop()
    app.configure(settings)
    inner = app.flow(name="f0")(lambda: app.actions["shop.double"](x=1))
    for number in range(60):
        inner = _wrapped(app, f"f{number + 1}", inner)
    async with app.client() as client:
        with pytest.raises(hf.Invalid, match="DAG_VALIDATION_FLOW_RECURSIVE"):
            await client.start(inner)


def _wrapped(app, name, inner):
    @app.flow(name=name)
    def wrapped():
        return inner()

    return wrapped


async def test_a_key_stands_for_one_run(nightly):
    flow = nightly.flows["shop.nightly"]
    async with nightly.client() as client:
        first = await client.start(flow.options(key="order-1", tags=["red"]), day="monday")
        again = await client.start(flow.options(key="order-1"), day="monday", number=7)
        named = (await client.start_many("shop.nightly", [{"day": "monday"}], RunOptions(key="order-1")))[0]
        assert first.run_id == again.run_id == named.run_id
        with pytest.raises(hf.Conflict) as caught:
            await client.start(flow.options(key="order-1"), day="tuesday")
        assert (caught.value.code, caught.value.fields["run_id"]) == ("idempotency_key_reused", first.run_id)
        assert await client.engine.database.fetchval("select count(*) from holdfast.run") == 1


async def test_two_who_start_with_one_key_at_once_get_one_run(nightly):
    flow = nightly.flows["shop.nightly"]
    async with nightly.client() as client:
        runs = await asyncio.gather(*(client.start(flow.options(key="k"), day="monday") for _ in range(8)))
        assert len({run.run_id for run in runs}) == 1


async def test_a_key_of_a_task_is_no_key_of_a_run(nightly):
    flow, double = nightly.flows["shop.nightly"], nightly.actions["shop.double"]
    async with nightly.client() as client:
        await client.enqueue(double.options(key="k"), x=1)
        with pytest.raises(hf.Conflict, match="idempotency_key_reused"):
            await client.start(flow.options(key="k"), day="monday")
        await client.start(flow.options(key="r"), day="monday")
        with pytest.raises(hf.Conflict, match="idempotency_key_reused"):
            await client.enqueue(double.options(key="r"), x=1)


async def test_a_key_survives_a_new_version_of_its_flow(settings, nightly):
    async with nightly.client() as client:
        first = await client.start(nightly.flows["shop.nightly"].options(key="k"), day="monday")
    newer, flow = a_nightly(version=2, bonus=3)
    async with Client(settings, newer.actions, newer.flows) as client:
        assert (await client.start(flow.options(key="k"), day="monday")).run_id == first.run_id


async def test_one_key_cannot_stand_for_many_runs(nightly):
    flow = nightly.flows["shop.nightly"]
    async with nightly.client() as client:
        with pytest.raises(hf.Invalid, match="invalid_key"):
            await client.start_many(flow.options(key="k"), [{"day": "a"}, {"day": "b"}])


async def test_options_reach_the_run(nightly):
    flow = nightly.flows["shop.nightly"]
    async with nightly.client() as client:
        run = await client.start(flow.options(key="k", tags=["red"], priority=1, concurrency=1), day="monday")
        row = await client.engine.database.fetchrow(
            "select key, tags, priority, max_active, active from holdfast.run where run_id = $1", int(run.run_id)
        )
        assert tuple(row) == ("k", ["red"], 1, 1, 1)


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ({"key": ""}, "invalid_key"),
        ({"key": "\n"}, "invalid_key"),
        ({"tags": "red"}, "invalid_tag"),
        ({"priority": 10}, "invalid_priority"),
        ({"concurrency": 0}, "invalid_concurrency"),
        ({"concurrency": True}, "invalid_concurrency"),
        ({"concurrency": "3"}, "invalid_concurrency"),
    ],
)
def test_bad_options_are_refused_at_once(option, code):
    _, flow = a_nightly()
    with pytest.raises(hf.Invalid) as caught:
        flow.options(**option)
    assert caught.value.code == code


async def test_the_blocking_client_starts_runs_too(nightly, holdfast_url):
    flow = nightly.flows["shop.nightly"]

    def work() -> tuple[str, list[str]]:
        with nightly.sync_client() as client:
            run = client.start(flow.options(key="k"), day="monday")
            assert client.start("shop.nightly", day="monday").run_id != run.run_id
            assert len(client.start_many(flow, [{"day": "a"}, {"day": "b"}])) == 2
            client.run(run.run_id).cancel("not today")
            return run.wait(20), [task.state for task in run.tasks()]

    state, tasks = await asyncio.to_thread(work)
    assert state == "canceled" and set(tasks) == {"canceled"}


async def test_versions_of_a_flow_live_side_by_side(settings, holdfast_url, clock: DatabaseClock):
    """A worker declares them all; a bare name starts the newest, whichever was written first."""
    app = hf.App("shop", settings=settings)

    @app.action
    def give(x: int) -> int:
        return x

    @app.flow(name="both", version=2)
    def newer():
        return give(2)

    @app.flow(name="both", version=1)
    def older():
        return give(1)

    assert app.flows["shop.both"] is newer and app.flows.versions["shop.both", 1] is older
    with pytest.raises(hf.Invalid, match="flow_exists"):
        app.flow(name="both", version=1)(lambda: give(3))
    await declared(app, holdfast_url)
    async with app.client() as client:
        by_name = await client.start("shop.both")
        by_version = await client.start_by_name("shop.both", {}, version=1)
        by_flow = await client.start(older)
        await run_until_idle(app, holdfast_url, clock=clock)
        assert [await run.result(timeout=20) for run in (by_name, by_version, by_flow)] == [2, 1, 1]
