"""A replay goes through the executor of its app, on the caller's loop and where a debugger stands."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

import holdfast as hf
from holdfast.testing.idle import run_until_idle

SEEN: list[tuple[str, str]] = []


class Around:
    async def execute(self, attempt: hf.Attempt) -> object:
        ctx = attempt.context
        SEEN.append((ctx.action, ctx.lease_token))
        box = await ctx.effect("box", str, "a")
        planned = await ctx.step("plan", str, "b")
        return [box, planned, await attempt.call()]


class Noon:
    def now(self) -> datetime:
        return datetime(2030, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def app(holdfast_url):
    SEEN.clear()
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url), executor=Around(), clock=Noon())
    made.dataset("prices", columns={"name": "text"})

    @made.action(max_retries=0)
    async def coroutine(ctx: hf.Context) -> list:
        return [await ctx.effect("mail", str, "sent"), ctx.now().hour]

    @made.action(max_retries=0)
    def plain(ctx: hf.Context) -> list:
        rows = ctx.dataset("prices").append([{"name": "one"}])
        return [ctx.effect("mail", str, "sent"), rows, asyncio.run(asyncio.sleep(0, "slept"))]

    @made.action(max_retries=0)
    def where() -> int:
        return threading.get_ident()

    @made.action(max_retries=0)
    def leave() -> None:
        raise SystemExit(3)

    @made.action(max_retries=0)
    async def interrupt() -> None:
        raise KeyboardInterrupt

    return made


@pytest.fixture
async def replays(app):
    """Replay a task of the app: on this loop, and in a thread of its own as the command line does."""
    async with app.client() as client:

        async def replay(name, *, runs=False, **options):
            task = await client.enqueue(f"shop.{name}")
            if runs:
                await run_until_idle(app, app.settings.url)
                SEEN.clear()
            here = await client.replay(task.task_id, **options)
            there = await asyncio.to_thread((await client.prepare_replay(task.task_id, **options)).run_here)
            return here, there

        yield replay


@pytest.mark.parametrize(
    ("name", "output"), [("coroutine", ["a", "b", ["sent", 12]]), ("plain", ["a", "b", ["sent", 1, "slept"]])]
)
async def test_effects_of_executor_and_action_are_answered_from_the_record(replays, name, output):
    for done in await replays(name, runs=True):
        assert (done.output, done.effects, done.comparison.likeness) == (output, ["box", "mail"], "same_output")
    assert [(f"shop.{name}", "")] * 2 == SEEN, "a replay has no lease"


@pytest.mark.parametrize("name", ["coroutine", "plain"])
async def test_an_effect_of_the_executor_ends_a_replay_that_has_no_receipt(replays, name):
    for done in await replays(name):
        assert (done.failure.code, done.effects) == ("effect_in_replay", ["box"])


async def test_plain_code_has_the_thread_of_whoever_replays_it(app):
    async with app.client() as client:
        task = await client.enqueue("shop.where")
        prepared = await client.prepare_replay(task.task_id, effects={"box": "a"})
        assert prepared.run_here().output[2] == threading.get_ident()


async def test_what_the_action_raised_is_the_failure(replays):
    for done in await replays("leave", effects={"box": "a"}):
        assert done.failure.type == "SystemExit"


async def test_an_interrupt_is_for_whoever_replays(app):
    async with app.client() as client:
        task = await client.enqueue("shop.interrupt")
        prepared = await client.prepare_replay(task.task_id, effects={"box": "a"})
        assert await asyncio.to_thread(_is_interrupted, prepared)


def _is_interrupted(prepared) -> bool:
    try:
        prepared.run_here()
    except KeyboardInterrupt:
        return True
    return False
