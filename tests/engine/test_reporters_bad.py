"""Whatever a reporter does, it harms itself alone: a failure with a sentence, and everything else goes on."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace

import pytest
from tests.engine.reporting import REFERENCE, URL, Spy, installed
from tests.engine.test_observe import until_settled

from holdfast.engine.engine import Engine
from holdfast.engine.webhooks import reporters
from holdfast.engine.webhooks.commands import add_webhook, show_webhook
from holdfast.engine.webhooks.deliver import Deliveries
from holdfast.settings.settings import Settings, WebhookSettings
from holdfast.testing.factories import a_running_task

TENANT = 1
SECRET = "hunter2"


@pytest.fixture
def holdfast_settings():
    return Settings(webhooks=WebhookSettings(timeout_seconds=20, reporters=(REFERENCE, "shop_other:reporter")))


@pytest.fixture
async def deliveries(engine):
    made = Deliveries(engine, None)
    yield made
    await made.close()


@pytest.fixture
async def hasty(engine):
    """A process that gives a reporter no time to speak of."""
    webhooks = replace(engine.settings.webhooks, timeout_seconds=0.5)
    async with Engine(engine.database.url, replace(engine.settings, webhooks=webhooks)) as other:
        made = Deliveries(other, None)
        yield made
        await made.close()


@pytest.fixture
def deliver(deliveries, clock, harness):
    """One pass of a process, past any backoff."""

    async def run(by=deliveries):
        await clock.advance(seconds=60)
        await until_settled(harness)
        await by.begin()
        return await by.settled()

    return run


@pytest.fixture
async def an_event(engine, harness):
    """A webhook for the reporter, and something to tell it."""
    await until_settled(harness)
    await add_webhook(engine, TENANT, "hook", URL, actor="anna")
    await a_running_task(harness)


async def fared(engine):
    view = await show_webhook(engine.database, TENANT, "hook")
    assert SECRET not in str(view)
    return view.failures, view.last_error


class Odd(BaseException):
    def __str__(self):
        raise RuntimeError("no words")


def raising(error):
    async def does(_event):
        raise error

    return Spy(does)


def of_an_odd_name():
    made = type("Odd", (Exception,), {})
    made.__name__ = "é" * 500
    return made(SECRET)


class Plain:
    def report(self, _event):
        """Not `async def`."""


class Broken:
    @property
    def report(self):
        raise ValueError(SECRET)


def failing():
    raise ValueError(SECRET)


def exiting():
    raise SystemExit(SECRET)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (raising(ValueError(SECRET)), "its report() raised ValueError"),
        (raising(SystemExit(SECRET)), "its report() raised SystemExit"),
        (raising(KeyboardInterrupt()), "its report() raised KeyboardInterrupt"),
        (raising(asyncio.CancelledError()), "its report() raised CancelledError"),
        (raising(TimeoutError()), "its report() raised TimeoutError"),
        (raising(Odd()), "its report() raised Odd"),
        (raising(of_an_odd_name()), "its report() raised " + "é" * 30),
        (Plain, "its report() is not `async def`"),
        (object, "what its factory made has no report()"),
        (lambda: None, "what its factory made has no report()"),
        (Broken, "its factory raised ValueError"),
        (failing, "its factory raised ValueError"),
        (exiting, "its factory raised SystemExit"),
        (SECRET, "its factory raised TypeError"),
    ],
)
async def test_what_it_raises_is_a_failure_that_tells_the_kind_alone(
    engine, deliver, an_event, monkeypatch, factory, sentence
):
    installed(monkeypatch, factory)
    done = await deliver()
    assert (done.failed, await fared(engine)) == (1, (1, sentence))
    await deliver()
    assert (done.failed, await fared(engine)) == (2, (2, sentence))


async def test_its_words_are_in_the_log(deliver, an_event, monkeypatch, caplog):
    installed(monkeypatch, raising(ValueError(SECRET)))
    await deliver()
    assert f"ValueError: {SECRET}" in caplog.text


async def test_what_could_not_be_made_is_made_when_it_can_be(engine, deliver, an_event, monkeypatch):
    installed(monkeypatch, failing)
    await deliver()
    mended = Spy()
    installed(monkeypatch, mended)
    await deliver()
    assert (mended.kinds, await fared(engine)) == (["task.started"], (0, None))


async def test_one_that_waits_for_ever_has_its_time_and_is_told_to_stop(
    engine, deliver, hasty, an_event, monkeypatch, caplog
):
    ours, stopped = asyncio.get_running_loop(), asyncio.Event()

    async def wait(_event):
        try:
            await asyncio.Event().wait()
        finally:
            ours.call_soon_threadsafe(stopped.set)

    installed(monkeypatch, spy := Spy(wait))
    await deliver(hasty)
    assert await fared(engine) == (1, "no answer within 0.5 s")
    async with asyncio.timeout(20):
        await stopped.wait()
    spy.does = None
    await deliver()
    assert await fared(engine) == (0, None)
    assert "CancelledError" not in caplog.text, "that was ours"


async def test_one_that_blocks_has_its_time_too(engine, deliver, hasty, an_event, monkeypatch):
    gate = threading.Event()

    async def block(_event):
        gate.wait(60)

    installed(monkeypatch, Spy(block))
    await deliver(hasty)
    assert await fared(engine) == (1, "no answer within 0.5 s")
    gate.set()


async def test_one_that_blocks_holds_up_no_other_reporter(engine, deliver, deliveries, an_event, monkeypatch):
    ours, arrived, gate = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    async def block(_event):
        gate.wait(60)

    async def note(_event):
        ours.call_soon_threadsafe(arrived.set)

    installed(monkeypatch, Spy(block))
    other = type(sys)("shop_other")
    other.reporter = Spy(note)
    monkeypatch.setitem(sys.modules, "shop_other", other)
    cursor = (await show_webhook(engine.database, TENANT, "hook")).cursor
    await add_webhook(engine, TENANT, "other", "reporter:shop_other:reporter", actor="anna")
    await engine.database.fetch("update holdfast.webhook set cursor = $1", cursor)
    delivering = asyncio.create_task(deliver())
    try:
        async with asyncio.timeout(20):
            await arrived.wait()
        assert not delivering.done()
    finally:
        gate.set()
    assert (await delivering).events == 2


async def leave(_event):
    async def exit_():
        raise SystemExit(1)

    await asyncio.create_task(exit_())


async def stop_all(_event):
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.Event().wait()


async def stop_the_loop(_event):
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


@pytest.mark.parametrize("end", [leave, stop_all, stop_the_loop])
async def test_one_that_ends_its_own_event_loop_is_made_anew(engine, deliver, an_event, monkeypatch, end):
    installed(monkeypatch, spy := Spy(end))
    done = await deliver()
    failures, sentence = await fared(engine)
    assert (done.failed, failures) == (1, 1)
    assert sentence in ("its event loop ended", "its report() raised SystemExit", "its report() raised CancelledError")
    spy.does = None
    await deliver()
    assert (await fared(engine), spy.made) == ((0, None), 2)


async def test_one_that_does_not_close_holds_up_no_stop(deliver, deliveries, an_event, monkeypatch, caplog):
    class Clinging(Spy):
        async def close(self):
            await asyncio.Event().wait()

    monkeypatch.setattr(reporters, "CLOSE_SECONDS_MAX", 0.05)
    installed(monkeypatch, Clinging())
    await deliver()
    async with asyncio.timeout(20):
        await deliveries.close()
    assert f"reporter {REFERENCE} was not closed: no answer within 0.05 s" in caplog.text


@pytest.mark.parametrize("close", [None, lambda: None, exiting])
async def test_a_close_that_is_missing_plain_or_fails_is_no_trouble(deliver, deliveries, an_event, monkeypatch, close):
    spy = Spy()
    spy.close = close
    installed(monkeypatch, spy)
    await deliver()
    await deliveries.close()
    assert spy.kinds == ["task.started"]
