"""The maintenance loops go on, whatever happens to one of their passes."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.cli.commands.server import launchers_of
from holdfast.engine.maintenance import loops
from holdfast.engine.maintenance.loops import Loops
from holdfast.errors import Invalid
from holdfast.launchers.loop import Launching
from holdfast.settings.settings import LaunchSettings, LoopSettings, Settings
from holdfast.store.database import ANY_DB_ERROR


@pytest.fixture
def holdfast_settings():
    return Settings(loops=LoopSettings(reap_seconds=0.05), launch=LaunchSettings(poll_seconds=0.05))


class Stumbling:
    """A pass that cannot read what it finds, and is told when it has its next turn."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.turns = 0
        self.had_next = asyncio.Event()

    async def __call__(self) -> None:
        self.turns += 1
        if self.turns > 1:
            self.had_next.set()
        raise self.error


async def test_a_pass_that_fails_is_logged_and_has_its_next_turn(engine, caplog, subtests):
    for error in [
        Invalid("A stored row says what this version cannot read."),
        ANY_DB_ERROR[-1]("no"),
        KeyError("rules"),
    ]:
        with subtests.test(error=error):
            for made, name in (
                (Loops(engine), "reap"),
                (Launching(engine, launchers_of(engine)), "_begin_launches"),
            ):
                stumbling = Stumbling(error)
                setattr(made, name, stumbling)
                going_on = asyncio.create_task(made.run())
                going_on.add_done_callback(lambda _, stumbling=stumbling: stumbling.had_next.set())
                async with asyncio.timeout(30):
                    await stumbling.had_next.wait()
                assert not going_on.done(), going_on.exception()
                going_on.cancel()
                await asyncio.gather(going_on, return_exceptions=True)
            assert "pass failed, will try again" in caplog.text


def test_a_pass_that_took_long_and_found_nothing_more_rests_in_proportion():
    assert loops._pause(1.0, None, rest=0.1) == 1.0
    assert loops._pause(1.0, None, rest=8.0) == 8.0
    assert loops._pause(1.0, 0.0, rest=8.0) == 0.0
