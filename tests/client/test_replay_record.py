"""What a replay is answered with is what the attempt was answered with: steps, receipts of others, a node's input."""

from __future__ import annotations

import uuid

import pytest

import holdfast as hf
from holdfast.core.replay import Likeness
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
    assert done.comparison.likeness is Likeness.SAME_FAILURE
    assert done.failure.message == done.recorded.message


async def test_steps_may_be_run_anew(app, client, engine, charge):
    task = await client.enqueue(charge, n=1)
    await run_until_idle(app, engine)
    done = await client.replay(task.task_id, runs_steps=True)
    assert (done.failure.code, "steps ran anew" in done.failure.message) == ("effect_key_reused", True)
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
