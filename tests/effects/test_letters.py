"""A letter names the effect that ended its task, if one did: never one that the action got over."""

from __future__ import annotations

import contextlib

import pytest

import holdfast as hf
from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.effects.gate import list_effects
from holdfast.engine.leases import Report
from holdfast.engine.queries.dead_letters import list_letters
from holdfast.server.worker_api.reports import done_of
from holdfast.testing import factories as a
from holdfast.testing.idle import run_until_idle
from holdfast.worker.transport.http_messages import completion


@pytest.fixture
def app(holdfast_settings):
    return hf.App("shop", settings=holdfast_settings)


@pytest.fixture
def letter_of(app, engine, clock):
    """Run one task to its bitter end, and give its letter and its effects."""

    async def work(action):
        async with hf.Client(app.settings, app.actions, url=engine.database.url) as client:
            task = await client.enqueue(action)
            await run_until_idle(app, engine, clock=clock)
        [letter] = await list_letters(engine.database, 1, task_id=int(task.task_id))
        return letter, await list_effects(engine.database, 1, task_ids=[int(task.task_id)])

    return work


@pytest.mark.parametrize("answer", [hf.EffectRefused("no such address"), hf.Fatal("declined"), OSError("away")])
async def test_the_effect_that_raised_is_what_failed(app, letter_of, provider, answer):
    provider.answers = [answer]

    @app.action(max_retries=0)
    async def mail(ctx: hf.Context) -> None:
        await ctx.effect("smtp.send", provider.send, key="7")

    letter, [effect] = await letter_of(mail)
    assert (letter.source_type, letter.source_id) == ("tool_effect", effect.idempotency_key)


async def test_also_when_the_action_says_it_in_its_own_words(app, letter_of, provider):
    provider.answers = [OSError("away"), OSError("away")]

    @app.action(max_retries=0)
    def said(ctx: hf.Context) -> None:
        try:
            ctx.effect("smtp.send", provider.send)
        except OSError as error:
            raise hf.Fatal("the mail is down") from error

    @app.action(max_retries=0)
    def raised_meanwhile(ctx: hf.Context) -> None:
        try:
            ctx.effect("smtp.send", provider.send)
        except OSError:
            raise hf.Fatal("the mail is down")  # noqa: B904 - that is the case

    for action in (said, raised_meanwhile):
        letter, [effect] = await letter_of(action)
        assert (letter.source_type, letter.source_id) == ("tool_effect", effect.idempotency_key)


async def test_what_the_action_got_over_is_not_at_fault(app, letter_of, provider):
    provider.answers = [OSError("away"), OSError("away")]

    @app.action(max_retries=0)
    def got_over_it(ctx: hf.Context) -> None:
        with contextlib.suppress(OSError):
            ctx.effect("smtp.send", provider.send)
        raise ValueError("something else")

    @app.action(max_retries=0)
    def says_so(ctx: hf.Context) -> None:
        try:
            ctx.effect("smtp.send", provider.send)
        except OSError:
            raise ValueError("something else") from None

    for action in (got_over_it, says_so):
        letter, effects = await letter_of(action)
        assert (letter.source_type, letter.source_id, len(effects)) == ("task", letter.task_id, 1)


async def test_an_effect_that_was_never_sent_is_not_at_fault(app, letter_of, engine):
    await engine.database.fetch(
        "insert into holdfast.authority (tenant_id, effect, action, is_allowed, actor) "
        "values (1, 'smtp.send', '', false, 'ops')"
    )

    @app.action(max_retries=0)
    async def mail(ctx: hf.Context) -> None:
        await ctx.effect("smtp.send", lambda: None)

    letter, effects = await letter_of(mail)
    assert (letter.source_type, letter.type, effects) == ("task", "holdfast.errors.EffectDenied", [])


@pytest.mark.parametrize("is_remote", [False, True], ids=["direct", "http"])
async def test_only_an_effect_of_the_task_itself_counts(harness, outbox, is_remote):
    """Whoever reports may say anything: the key of another task, or one that there never was."""
    other, own = await a.a_running_task(harness, max_retries=0), await a.a_running_task(harness, max_retries=0)
    sent = await outbox.open(own, user_key="own")
    await outbox.open(other, user_key="other")
    stranger = await a.a_running_task(harness, max_retries=0)
    for lease, key, source in (
        (own, sent.key, ("tool_effect", sent.key)),
        (other, sent.key, ("task", other.task_id)),
        (stranger, "hf-none", ("task", stranger.task_id)),
    ):
        outcome = Failed(Failure(code="X", message="no", effect=key))
        await harness.settle(lease, _travelled(lease, outcome) if is_remote else outcome)
        [letter] = await harness.letters(lease.task_id)
        assert (letter.source_type, letter.source_id) == source


def _travelled(lease, outcome):
    """The outcome as a server reads it from a worker's report."""
    report = Report(lease.claimed.task_id, lease.attempt, lease.token, 1, 0, 0, outcome)
    return done_of(completion(report), 1 << 20).outcome
