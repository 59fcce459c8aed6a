"""What a replay is answered with is what the attempt was answered with: steps, receipts of others, a node's input."""

from __future__ import annotations

import uuid

import pytest

import holdfast as hf
from holdfast.core.tasks.replay import ReplayMatch
from holdfast.testing.idle import run_until_idle


@pytest.fixture
def app(holdfast_url):
    return hf.App("shop", settings=hf.Settings(url=holdfast_url))


@pytest.fixture
async def client(app):
    async with app.client() as opened:
        yield opened


def send(ref: str) -> dict:
    return {"id": ref}


@pytest.fixture
def charge(app):
    """What changes from run to run comes from a step, so the arguments of the effect stay the same."""

    @app.action(max_retries=0)
    async def charge(ctx: hf.Context, n: int) -> str:
        ref = await ctx.step("ref", lambda: uuid.uuid4().hex)
        await ctx.effect("card.charge", send, ref, key=f"order:{n}:{ctx.attempt}")
        raise ValueError(f"after the charge {ref}")

    return charge


async def test_a_step_gives_what_it_gave_so_its_effect_is_found(app, client, engine, charge):
    task = await client.enqueue(charge, n=1)
    await run_until_idle(app, engine)
    done = await client.replay(task.task_id)
    assert done.comparison.likeness is ReplayMatch.SAME_FAILURE
    assert done.failure.message == done.recorded.message


async def test_steps_may_be_run_anew(app, client, engine, charge):
    task = await client.enqueue(charge, n=1)
    await run_until_idle(app, engine)
    done = await client.replay(task.task_id, runs_steps=True)
    assert (done.failure.code, "steps ran again" in done.failure.message) == ("effect_key_reused", True)
    given = await client.replay(task.task_id, runs_steps=True, effects={"card.charge": {}})
    assert given.failure.type == "ValueError" and given.failure.message != given.recorded.message


async def test_each_generation_has_its_own_steps(app, client, engine, charge):
    task = await client.enqueue(charge, n=1)
    await run_until_idle(app, engine)
    await client.dead.redrive(task.task_id, reason="again")
    await run_until_idle(app, engine)
    ends = [await client.replay(task.task_id, attempt=attempt) for attempt in (1, 2)]
    assert [end.failure.message for end in ends] == [end.recorded.message for end in ends]
    assert ends[0].failure.message != ends[1].failure.message


async def test_a_dead_node_is_given_what_its_letter_keeps(app, client, engine):
    """Not what its bindings give since its upstream ran again; each generation has its own."""
    made = {"number": 5}

    @app.action(max_retries=0)
    def first() -> int:
        return made["number"]

    @app.action(max_retries=0)
    def second(ctx: hf.Context, x: int) -> None:
        raise ValueError(f"{x} for {ctx.tags[0]}")

    @app.flow
    def both():
        return second(x=first())

    run = await client.start(both.options(tags=["ada"]))
    await run_until_idle(app, engine)
    made["number"] = 6
    await run.retry("again", only="first")
    await run_until_idle(app, engine)
    task_id = next(task.task_id for task in await run.tasks() if task.node == "second")
    seen = [(await client.replay(task_id, attempt=attempt)).failure.message for attempt in (1, 2)]
    assert seen == ["5 for ada", "6 for ada"]


async def test_a_dead_item_that_was_replaced_can_still_be_looked_into(app, client, engine):
    listed = {"lines": ["a", "b"]}

    @app.action(max_retries=0)
    def listing() -> list:
        return listed["lines"]

    @app.action(max_retries=0)
    def put(line: str) -> str:
        if line == "b":
            raise ValueError(line)
        return line

    @app.flow
    def logged():
        return put.map(line=listing())

    run = await client.start(logged)
    await run_until_idle(app, engine)
    first = await engine.database.fetchval("select items_first from holdfast.node where items_first is not null")
    listed["lines"] = ["c"]
    await run.retry("again", only="listing")
    await run_until_idle(app, engine)
    assert (await client.replay(str(first + 1))).failure.message == "b"
    await engine.database.fetch("update holdfast.dead_letter set input = null")
    for item in (first, first + 1):
        with pytest.raises(hf.Conflict, match="is gone"):
            await client.replay(str(item))


@pytest.fixture
def sharing(app):
    """Two kinds of code that ask for what another task had sent under a key, and fail after it."""

    @app.action(max_retries=0)
    async def waiting(ctx: hf.Context, n: int) -> None:
        got = await ctx.effect("card.charge", send, "one", key="order:7")
        if n > 1:
            raise ValueError(got["id"])

    @app.action(max_retries=0)
    def plain(ctx: hf.Context, n: int) -> None:
        got = ctx.effect("card.charge", send, "one" if n < 3 else "other", key="order:8")
        if n > 1:
            raise ValueError(got["id"])

    return {"waiting": waiting, "plain": plain}


@pytest.mark.slow("it waits for real time; test_items_are_answered_with_what_those_before_them_got is fast")
async def test_a_receipt_that_another_task_got_answers_too(app, client, engine, sharing, subtests):
    for kind in ["waiting", "plain"]:
        with subtests.test(kind=kind):
            tasks = []
            for n in (1, 2):
                tasks.append(await client.enqueue(sharing[kind], n=n))
                await run_until_idle(app, engine)
            done = await client.replay(tasks[1].task_id)
            assert (done.failure.message, done.comparison.likeness) == ("one", ReplayMatch.SAME_FAILURE)
            if kind == "plain":
                assert (await client.prepare_replay(tasks[1].task_id)).run_here().failure.message == "one"


async def test_the_key_of_another_task_stands_for_its_arguments(app, client, engine, sharing):
    for n in (1, 3):
        task = await client.enqueue(sharing["plain"], n=n)
        await run_until_idle(app, engine)
    done = await client.replay(task.task_id)
    assert (done.failure.code, done.recorded.code) == ("effect_key_reused", "effect_key_reused")


async def test_items_are_answered_with_what_those_before_them_got(app, client, engine):
    made = {"lines": ["a", "b"], "is_bad": False}

    @app.action(max_retries=0)
    def listing() -> list:
        return made["lines"]

    @app.action(max_retries=0)
    async def mail(ctx: hf.Context, line: str) -> None:
        got = await ctx.effect("smtp.send", send, line)
        if made["is_bad"]:
            raise ValueError(got["id"])

    @app.flow
    def mailed():
        return mail.map(line=listing())

    run = await client.start(mailed)
    await run_until_idle(app, engine)
    made.update(lines=["a", "c"], is_bad=True)
    await run.retry("again", only="listing")
    await run_until_idle(app, engine)
    first = await engine.database.fetchval("select items_first from holdfast.node where items_first is not null")
    seen = [(await client.replay(str(first + number))).failure.message for number in (0, 1)]
    assert seen == ["a", "c"]
