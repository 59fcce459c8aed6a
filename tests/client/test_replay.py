"""A task replayed from the client: the same code on the same input, and nothing in the database is different."""

from __future__ import annotations

import asyncio

import pytest
from tests.by_sql import by_sql
from tests.core.flows import an_edge

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.tasks.replay import ReplayMatch
from holdfast.errors import Unavailable
from holdfast.testing.idle import run_until_idle

LUCK = {"is_good": False}


@pytest.fixture
def app(holdfast_url):
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url))

    @made.action(max_retries=0)
    async def charge(ctx: hf.Context, amount: int) -> dict:
        ctx.log("charging", amount=amount)
        if not LUCK["is_good"]:
            raise ConnectionError("no luck")
        return {"charged": amount, "attempt": ctx.attempt, "tags": list(ctx.tags)}

    @made.action(max_retries=0)
    def double(x: int) -> int:
        return 2 * x

    @made.action(max_retries=0)
    async def mail(ctx: hf.Context, to: str) -> dict:
        total = await ctx.step("sum", sum, [1, 2])
        receipt = await ctx.effect("smtp.send", print, to, key=f"mail:{to}")
        await ctx.heartbeat()
        return {"receipt": receipt, "total": total}

    @made.action(max_retries=0)
    def mail_plainly(ctx: hf.Context) -> str:
        return ctx.effect("smtp.send", print)

    @made.action(max_retries=0)
    def leave() -> None:
        raise SystemExit(3)

    @made.action(max_retries=0)
    def give_a_thing() -> object:
        return object()

    return made


@pytest.fixture(autouse=True)
def bad_luck():
    LUCK["is_good"] = False


@pytest.fixture
async def client(app):
    async with app.client() as opened:
        yield opened


async def everything(engine) -> dict[str, str]:
    """Every row of every table of the schema, and every sequence."""
    fetch, query = (
        engine.database.fetch,
        "select coalesce(string_agg(t::text, ';' order by t::text), '') from holdfast.{} t",
    )
    names = await fetch("select relname from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'r'")
    rows = {row[0]: str(await fetch(query.format(row[0]))) for row in names}
    drawn = await fetch("select sequencename::text, last_value from pg_sequences where schemaname = 'holdfast'")
    return rows | {row[0]: str(row[1]) for row in drawn}


async def test_a_failure_is_repeated_and_compared(app, client, engine):
    task = await client.enqueue(app.actions["shop.charge"].options(tags=["red"]), amount=7)
    await run_until_idle(app, engine)
    before = await everything(engine)
    done = await client.replay(task.task_id)
    assert await everything(engine) == before
    assert (done.state, done.action, done.input, done.attempt) == ("failed", "shop.charge", {"amount": 7}, 1)
    assert done.comparison.likeness is ReplayMatch.SAME_FAILURE
    assert done.failure.type == "ConnectionError" and done.recorded.state == "failed"
    assert done.notes == [("log", {"message": "charging", "amount": 7})]


async def test_code_that_was_mended_completes_now(app, client, engine):
    task = await client.enqueue(app.actions["shop.charge"].options(tags=["red"]), amount=7)
    await run_until_idle(app, engine)
    LUCK["is_good"] = True
    done = await client.replay(task.task_id)
    assert (done.state, done.output) == ("completed", {"charged": 7, "attempt": 1, "tags": ["red"]})
    assert done.comparison.likeness is ReplayMatch.COMPLETES_NOW
    assert await task.wait() == "failed"


async def test_a_completed_task_gives_the_same_output(app, client, engine):
    task = await client.enqueue("shop.double", x=21)
    await run_until_idle(app, engine)
    done = await client.replay(task.task_id)
    assert (done.output, done.comparison.likeness) == (42, ReplayMatch.SAME_OUTPUT)


async def test_a_task_that_never_ran_can_be_tried_beforehand(client, engine):
    task = await client.enqueue("shop.double", x=21)
    before = await everything(engine)
    done = await client.replay(task.task_id)
    assert (done.output, done.comparison.likeness) == (42, ReplayMatch.NOTHING_RECORDED)
    assert await everything(engine) == before


async def test_a_running_task_is_not_disturbed(client, engine, harness):
    harness.know("shop.double")
    task = await client.enqueue("shop.double", x=21)
    await harness.claim_one()
    before = await everything(engine)
    assert (await client.replay(task.task_id)).output == 42
    assert await everything(engine) == before


async def test_an_attempt_is_chosen_by_number_else_the_last_that_failed(app, client, engine):
    task = await client.enqueue("shop.charge", amount=7)
    await run_until_idle(app, engine)
    LUCK["is_good"] = True
    await client.dead.redrive(task.task_id, reason="fixed")
    await run_until_idle(app, engine)
    assert (await client.replay(task.task_id)).recorded.attempt == 1
    second = await client.replay(task.task_id, attempt=2)
    assert (second.recorded.state, second.comparison.likeness) == ("completed", ReplayMatch.SAME_OUTPUT)
    with pytest.raises(hf.NotFound, match="no attempt 3"):
        await client.replay(task.task_id, attempt=3)


async def test_an_effect_is_never_sent_and_ends_the_replay(client, capsys):
    task = await client.enqueue("shop.mail", to="ada")
    done = await client.replay(task.task_id)
    assert (done.state, done.failure.code, done.effects) == ("failed", "effect_in_replay", ["smtp.send"])
    assert capsys.readouterr().out == ""


async def test_an_effect_may_be_given_its_receipt(client, capsys):
    task = await client.enqueue("shop.mail", to="ada")
    done = await client.replay(task.task_id, effects={"smtp.send": {"id": "m1"}})
    assert (done.output, done.effects) == ({"receipt": {"id": "m1"}, "total": 3}, ["smtp.send"])
    plain = await client.enqueue("shop.mail_plainly")
    assert (await client.replay(plain.task_id, effects={"smtp.send": "m2"})).output == "m2"
    assert capsys.readouterr().out == ""


async def test_what_would_end_a_process_is_only_a_failure(client):
    task = await client.enqueue("shop.leave")
    assert (await client.replay(task.task_id)).failure.type == "SystemExit"


async def test_input_and_output_are_refused_as_a_worker_would(client, engine):
    task = await by_sql(client, "shop.double", x="many")
    assert (await client.replay(task.task_id)).failure.code == "DAG_VALIDATION_INPUT_INVALID"
    task = await client.enqueue("shop.give_a_thing")
    assert (await client.replay(task.task_id)).failure.code == "DAG_VALIDATION_OUTPUT_INVALID"


async def test_an_unknown_task_or_action_is_not_found(client, engine, holdfast_url):
    with pytest.raises(hf.NotFound):
        await client.replay("999")
    task = await client.enqueue("shop.double", x=1)
    async with hf.App("other", settings=hf.Settings(url=holdfast_url)).client() as other:
        with pytest.raises(hf.NotFound, match="no action"):
            await other.replay(task.task_id)


async def test_another_tenants_task_is_not_found(client, engine):
    from holdfast.engine.queries.task_snapshot import capture

    task = await client.enqueue("shop.double", x=1)
    with pytest.raises(hf.NotFound):
        await capture(engine.database, engine.catalog, 2, int(task.task_id))


def test_the_blocking_client_replays_too(app):
    with app.sync_client() as client:
        task = client.enqueue("shop.double", x=4)
        assert client.replay(task.task_id).output == 8


FLOW = FlowDefinition(
    name="shop.nightly",
    nodes=(
        Node(name="first", action="shop.double", config={"x": 2}),
        Node(name="second", action="shop.double"),
        Node(name="each", action="shop.double", kind=NodeKind.MAP, map_over="x", config={"x": [5, 6]}),
    ),
    edges=(an_edge("first>second", ">x"),),
).validated()


async def test_a_node_gets_its_input_from_its_bindings(app, client, engine):
    run = await client.start(FLOW)
    first, second, _ = [str(int(run.run_id) + number) for number in (1, 2, 3)]
    with pytest.raises(hf.Conflict, match="input cannot be built"):
        await client.replay(second)
    await run_until_idle(app, engine)
    before = await everything(engine)
    assert [(await client.replay(one)).output for one in (first, second)] == [4, 8]
    assert (await client.replay(second)).comparison.likeness is ReplayMatch.SAME_OUTPUT
    assert await everything(engine) == before


async def test_an_item_gets_its_part_of_the_list(app, client, engine):
    run = await client.start(FLOW)
    await run_until_idle(app, engine)
    items = await engine.database.fetchval("select items_first from holdfast.node where items_first is not null")
    assert [(await client.replay(str(items + number))).output for number in (0, 1)] == [10, 12]
    assert await run.wait() == "completed"


async def test_capturing_cannot_write(client, engine, monkeypatch):
    """Whatever the captured input needs is read in a transaction that refuses everything else."""
    from holdfast.engine.queries import task_snapshot

    async def meddle(session, *_given):
        await session.fetch("update holdfast.live set priority = 1")

    monkeypatch.setattr(task_snapshot, "_with_input", meddle)
    task = await client.enqueue("shop.double", x=1)
    with pytest.raises(Unavailable) as refused:
        await client.replay(task.task_id)
    assert refused.value.code == "database_read_only"


async def test_a_plain_function_does_not_hold_up_the_loop(app, client):
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.action
    def wait_for_the_loop() -> str:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        return "done"

    task = await client.enqueue("shop.wait_for_the_loop")
    replaying = asyncio.create_task(client.replay(task.task_id))
    await started.wait()
    go_on.set()
    assert (await replaying).output == "done"


# What a replay runs is what ran: the same answers to the same questions.


@pytest.fixture
def sending(app):
    """An app whose actions ask for everything a worker gives."""
    sent: list[str] = []

    def send(to: str) -> dict:
        sent.append(to)
        return {"id": f"m-{to}"}

    async def add(one: int, other: int) -> int:
        return one + other

    app.dataset("orders", version=1, columns={"order_id": "bigint"}, key="order_id")

    @app.action(max_retries=0)
    async def publish_all(ctx: hf.Context) -> dict:
        first = await ctx.effect("smtp.send", send, "ada", key="mail:ada")
        second = await ctx.effect("smtp.send", send, "bob", key="mail:bob")
        unkeyed = [await ctx.effect("smtp.send", send, to) for to in ("c", "d")]
        return {"first": first, "second": second, "unkeyed": unkeyed, "beats": await ctx.heartbeat()}

    @app.action(max_retries=0)
    def plainly(ctx: hf.Context) -> dict:
        rows = ctx.dataset("orders").append([{"order_id": 1}, {"order_id": 2}])
        return {"sum": ctx.step("sum", add, 1, 2), "beats": ctx.heartbeat(), "rows": rows}

    @app.action(max_retries=0)
    async def write(ctx: hf.Context) -> int:
        return await ctx.dataset("orders").replace([{"order_id": 3}])

    @app.action(max_retries=0)
    async def refused(ctx: hf.Context) -> None:
        def refuse() -> None:
            raise hf.EffectRefused("the card was declined", code="declined")

        await ctx.effect("card.charge", refuse)

    @app.action(max_retries=0)
    async def change(ctx: hf.Context) -> None:
        await ctx.effect("smtp.send", send, LUCK.get("to", "ada"), key="mail:x")

    return sent


async def test_effects_are_answered_by_their_keys_from_the_record(app, client, engine, sending):
    task = await client.enqueue("shop.publish_all")
    await run_until_idle(app, engine)
    assert await task.wait() == "completed" and len(sending) == 4
    before = await everything(engine)
    done = await client.replay(task.task_id)
    assert (done.comparison.likeness, done.output["second"], done.output["beats"]) == (
        ReplayMatch.SAME_OUTPUT,
        {"id": "m-bob"},
        True,
    )
    assert [one["id"] for one in done.output["unkeyed"]] == ["m-c", "m-d"]
    assert len(sending) == 4 and await everything(engine) == before
    given = await client.replay(task.task_id, effects={"smtp.send:mail:bob": "mine"})
    assert (given.output["first"], given.output["second"]) == ({"id": "m-ada"}, "mine")


async def test_plain_code_with_a_step_that_is_a_coroutine_and_a_dataset(app, client, engine, sending):
    plain, written = await client.enqueue("shop.plainly"), await client.enqueue("shop.write")
    await run_until_idle(app, engine)
    rows = "select count(*) from holdfast_data.orders"
    before = await everything(engine), await engine.database.fetchval(rows)
    done = await client.replay(plain.task_id)
    assert (done.output, done.comparison.likeness) == ({"sum": 3, "beats": True, "rows": 2}, ReplayMatch.SAME_OUTPUT)
    assert (await client.replay(written.task_id)).comparison.likeness is ReplayMatch.SAME_OUTPUT
    assert (await everything(engine), await engine.database.fetchval(rows)) == before


async def test_a_refusal_is_repeated_and_other_arguments_are_a_conflict(app, client, engine, sending):
    task = await client.enqueue("shop.refused")
    changed = await client.enqueue("shop.change")
    await run_until_idle(app, engine)
    done = await client.replay(task.task_id)
    assert (done.failure.code, done.comparison.likeness) == ("declined", ReplayMatch.OTHER_LINE)
    LUCK["to"] = "eve"
    try:
        assert (await client.replay(changed.task_id)).failure.code == "effect_key_reused"
    finally:
        del LUCK["to"]
