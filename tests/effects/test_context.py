"""`ctx.effect`, `ctx.step`, `ctx.heartbeat` as an action uses them, in coroutines, threads and processes."""

from __future__ import annotations

import asyncio

import pytest

import holdfast as hf
from holdfast.engine.effects.gate import list_effects
from holdfast.testing.idle import run_until_idle

QUICK = {"base_backoff_secs": 0.001, "max_backoff_secs": 0.001}


@pytest.fixture
def app(holdfast_settings):
    return hf.App("shop", settings=holdfast_settings)


@pytest.fixture
def run(app, engine, clock):
    """Enqueue one task, run it to its end, and give its ending."""

    async def work(action, **given):
        async with hf.Client(app.settings, app.actions, url=engine.database.url) as client:
            task = await client.enqueue(action, **given)
            await run_until_idle(app, engine, clock=clock)
            return task.task_id, await client.ending(task.task_id, timeout=5)

    return work


async def effects_of(engine, task_id):
    return await list_effects(engine.database, 1, task_ids=[int(task_id)])


async def test_an_effect_gives_its_receipt_and_keeps_it(app, run, provider, engine):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> dict:
        return await ctx.effect("smtp.send", provider.send_async, order, key=f"receipt:{order}")

    task_id, ending = await run(mail, order=7)
    assert (ending.state, ending.output) == ("completed", b'{"id":1,"sent":[7]}')
    [effect] = await effects_of(engine, task_id)
    assert (effect.effect, effect.user_key, effect.state, effect.sends) == ("smtp.send", "receipt:7", "done", 1)
    assert provider.keys == [effect.idempotency_key]


async def test_a_plain_action_does_the_same_without_await(app, run, provider):
    @app.action
    def mail(ctx: hf.Context, order: int) -> list:
        first = ctx.effect("smtp.send", provider.send, order)
        second = ctx.effect("smtp.send", provider.send_async, order)
        return [first["id"], second["id"], ctx.step("double", lambda x: 2 * x, order), ctx.heartbeat()]

    assert (await run(mail, order=7))[1].output == b"[1,2,14,true]"
    assert len(set(provider.keys)) == 2


async def test_a_coroutine_may_hand_over_a_plain_function(app, run, provider):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> list:
        sent = await asyncio.gather(*(ctx.effect("smtp.send", provider.send, n, key=f"n{n}") for n in range(3)))
        return [sorted(one["sent"][0] for one in sent), await ctx.heartbeat()]

    assert (await run(mail, order=7))[1].output == b"[[0,1,2],true]"


async def test_a_retry_is_answered_with_the_receipt(app, run, provider):
    @app.action(retry=QUICK)
    async def mail(ctx: hf.Context, order: int) -> dict:
        receipt = await ctx.effect("smtp.send", provider.send, order)
        if ctx.attempt < 3:
            raise ConnectionError("after the effect")
        return receipt

    assert (await run(mail, order=7))[1].output == b'{"id":1,"sent":[7]}'
    assert len(provider.keys) == 1


async def test_a_send_without_an_answer_is_unknown_and_sent_again_under_its_key(app, run, provider, engine):
    provider.answers = [TimeoutError("no answer"), {"id": 9}]
    seen = []

    @app.action(retry=QUICK)
    async def mail(ctx: hf.Context, order: int) -> dict:
        seen.extend((one.state, one.message) for one in await effects_of(engine, ctx.task_id))
        return await ctx.effect("smtp.send", provider.send, order)

    task_id, ending = await run(mail, order=7)
    assert ending.output == b'{"id":9}'
    assert seen == [("unknown", "TimeoutError: no answer")]
    assert len(provider.keys) == 2 and len(set(provider.keys)) == 1
    assert [one.sends for one in await effects_of(engine, task_id)] == [2]


async def test_a_refusal_is_an_answer_and_ends_the_task(app, run, provider, engine):
    provider.answers = [hf.EffectRefused("card declined", code="card_declined")]

    @app.action(retry=QUICK)
    async def charge(ctx: hf.Context, order: int) -> dict:
        return await ctx.effect("card.charge", provider.send, order)

    task_id, ending = await run(charge, order=7)
    assert (ending.state, ending.code) == ("failed", "card_declined")
    [effect] = await effects_of(engine, task_id)
    assert (effect.state, effect.code, effect.message) == ("refused", "card_declined", "card declined")


async def test_a_refusal_whose_code_cannot_be_stored_is_kept_all_the_same(app, run, provider, engine):
    """PostgreSQL keeps no NUL in text; an answer that is not kept leaves the effect unknown, and it is sent again."""
    provider.answers = [hf.EffectRefused("card\0declined", code="card\0declined")]

    @app.action(retry=QUICK)
    async def charge(ctx: hf.Context, order: int) -> dict:
        return await ctx.effect("card.charge", provider.send, order)

    task_id, ending = await run(charge, order=7)
    [effect] = await effects_of(engine, task_id)
    assert (ending.state, effect.state, effect.code) == ("failed", "refused", "card\ufffddeclined")


async def test_within_a_generation_a_refusal_stands(app, run, provider):
    provider.answers = [hf.EffectRefused("card declined")]

    @app.action(retry=QUICK)
    async def charge(ctx: hf.Context, order: int) -> int:
        try:
            await ctx.effect("card.charge", provider.send, order)
        except hf.EffectRefused as refusal:
            if ctx.attempt == 1:
                raise ConnectionError("tell the customer later") from None
            return str(refusal.detail)

    assert (await run(charge, order=7))[1].output == b'"card declined"'
    assert len(provider.keys) == 1


async def test_a_redrive_asks_again_what_was_refused(app, run, provider, engine, clock):
    provider.answers = [hf.EffectRefused("card declined")]

    @app.action(retry=QUICK)
    async def charge(ctx: hf.Context, order: int) -> dict:
        return await ctx.effect("card.charge", provider.send, order)

    task_id, _ = await run(charge, order=7)
    async with hf.Client(app.settings, app.actions, url=engine.database.url) as client:
        await client.retry(task_id)
        await run_until_idle(app, engine, clock=clock)
        assert await client.result(task_id, timeout=5) == {"id": 2, "sent": [7]}
    assert len(set(provider.keys)) == 1


async def test_a_step_is_done_once_in_a_generation_and_anew_after_a_redrive(app, run, engine, clock):
    calls = []

    @app.action(max_retries=1, retry=QUICK)
    async def report(ctx: hf.Context, day: str) -> list:
        pages = [await ctx.step("page", lambda n: calls.append(n) or [n, len(calls)], n) for n in (1, 2, 1)]
        if ctx.attempt < 3:
            raise ConnectionError("after the steps")
        return pages

    task_id, ending = await run(report, day="today")
    assert (ending.state, calls) == ("failed", [1, 2])
    async with hf.Client(app.settings, app.actions, url=engine.database.url) as client:
        await client.dead.redrive(task_id, reason="fixed")
        await run_until_idle(app, engine, clock=clock)
        assert await client.result(task_id, timeout=5) == [[1, 3], [2, 4], [1, 3]]


async def test_the_same_key_with_other_arguments_is_refused(app, run, provider):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> None:
        await ctx.effect("smtp.send", provider.send, order, key="receipt")
        await ctx.effect("smtp.send", provider.send, order + 1, key="receipt")

    _, ending = await run(mail, order=7)
    assert (ending.state, ending.code) == ("failed", "effect_key_reused")
    assert len(provider.keys) == 1


async def test_equal_arguments_are_equal_in_any_order(app, run):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> int:
        await ctx.effect("note", lambda body: None, {"a": 1, "b": {2, 3}}, key="k")
        return await ctx.effect("note", lambda body: 5, {"b": {3, 2}, "a": 1}, key="k")

    assert (await run(mail, order=7))[1].output == b"null"


async def test_another_task_with_the_key_gets_the_same_receipt(app, run, provider):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> dict:
        return await ctx.effect("smtp.send", provider.send, order, key=f"receipt:{order}")

    outputs = [(await run(mail, order=7))[1].output for _ in range(2)]
    assert outputs[0] == outputs[1] and len(provider.keys) == 1


async def test_what_cannot_be_told_apart_is_refused_before_anything_is_sent(app, run):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> None:
        await ctx.effect("smtp.send", lambda client: None, object())

    assert (await run(mail, order=7))[1].code == "payload_not_json"


async def test_one_key_is_not_sent_twice_at_once_by_an_attempt(app, run, provider):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> list:
        both = (ctx.effect("smtp.send", provider.send, order, key="k") for _ in range(2))
        found = await asyncio.gather(*both, return_exceptions=True)
        return [getattr(one, "code", "sent") for one in found]

    assert (await run(mail, order=7))[1].output == b'["sent","effect_in_flight"]'
    assert len(provider.keys) == 1


async def test_a_receipt_that_is_no_json_leaves_the_effect_unknown(app, run, engine):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> None:
        await ctx.effect("smtp.send", lambda: object())

    task_id, ending = await run(mail, order=7)
    assert (ending.state, ending.code) == ("failed", "payload_not_json")
    assert [one.state for one in await effects_of(engine, task_id)] == ["unknown"]


async def test_an_effect_without_authority_is_not_sent(app, run, provider, engine):
    from holdfast.engine.effects.authority import rule

    await rule(engine.database, 1, "card.charge", "shop.refund", is_allowed=True, actor="ada", reason="")

    @app.action(retry=QUICK)
    async def charge(ctx: hf.Context, order: int) -> dict:
        return await ctx.effect("card.charge", provider.send, order)

    task_id, ending = await run(charge, order=7)
    assert (ending.state, ending.code) == ("failed", "effect_not_allowed")
    assert not provider.keys and not await effects_of(engine, task_id)


async def test_a_beat_tells_a_canceled_attempt_to_stop(app, run, harness):
    @app.action
    async def loop(ctx: hf.Context) -> list:
        before = await ctx.heartbeat()
        await harness.cancel(ctx.task_id)
        return [before, await ctx.heartbeat(), ctx.is_canceled]

    assert (await run(loop))[1].output == b"[true,false,true]"


def test_a_context_without_an_attempt_says_so():
    ctx = hf.Context(task_id="1", attempt=1, tenant="default", action="shop.mail", queue="default")
    with pytest.raises(RuntimeError, match="no running attempt"):
        ctx.effect("smtp.send", print)


class Listener:
    """A tap that writes down the names of statements."""

    def __init__(self) -> None:
        self.names = []

    def before(self, statement: str) -> None:
        self.names.append(statement.splitlines()[0].removeprefix("-- holdfast: "))

    def after(self, statement: str) -> None:
        pass


async def test_an_effect_costs_two_round_trips_and_a_first_step_one(app, run, engine):
    heard = Listener()

    @app.action
    async def mail(ctx: hf.Context) -> None:
        engine.database.tap = heard
        for n in range(2):
            await ctx.effect("smtp.send", lambda n: n, n)
            await ctx.step("page", lambda n: n, n)
        engine.database.tap = None

    assert (await run(mail))[1].state == "completed"
    mine = [name for name in heard.names if "effect" in name or "step" in name]
    assert mine == ["open_effect", "answer_effect", "store_step"] * 2


async def test_no_transaction_is_open_while_an_effect_is_sent(app, run, engine):
    open_transactions = (
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'"
        " and query like '-- holdfast: open_effect%'"
    )

    @app.action
    async def mail(ctx: hf.Context) -> int:
        async def send() -> int:
            return await engine.database.fetchval(open_transactions)

        return await ctx.effect("smtp.send", send)

    assert (await run(mail))[1].output == b"0"


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("name", ["mailed", "outer"])
async def test_tasks_that_run_in_the_place_of_others_send_nothing_again(app, provider, engine, name):
    """Items of a list that is made anew, and nodes of a sub-flow that is replaced; a member that is new is sent."""
    listed = {"orders": [1, 2]}

    @app.action(max_retries=0)
    def listing() -> list:
        return listed["orders"]

    @app.action(max_retries=0)
    async def mail(ctx: hf.Context, order: int) -> None:
        await ctx.effect("smtp.send", provider.send_async, order)
        await ctx.effect("smtp.send", provider.send_async, -order)

    @app.flow
    def mailed():
        return mail.map(order=listing())

    @app.flow
    def inner(orders: list):
        return mail.map(order=orders)

    @app.flow
    def outer():
        return inner(orders=listing())

    async with hf.Client(app.settings, app.actions, url=engine.database.url) as client:
        await run_until_idle(app, engine)
        run = await client.start({"mailed": mailed, "outer": outer}[name])
        await run_until_idle(app, engine)
        assert len(set(provider.keys)) == len(provider.keys) == 4
        for orders, sends in (([1, 2, 3], 6), ([1, 9, 3], 8), ([1, 9, 3], 8), ([1, 2, 3], 8)):
            listed["orders"] = orders
            await run.retry("again", only="listing")
            await run_until_idle(app, engine)
            assert (await run.show()).state == "completed"
            assert len(set(provider.keys)) == len(provider.keys) == sends
