"""A flow that this version cannot read, because a newer one wrote it or something damaged it, holds up no other."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

from tests.flow.test_runs import a_wait

from holdfast.dispatcher.engine import Engine
from holdfast.testing.dispatcher import Dispatcher

_LATER = "update holdfast.flow set definition = jsonb_set(definition, '{nodes,0,kind}', '\"later\"') where name = $1"
_MEND = "update holdfast.flow set definition = $2 where name = $1"
_READ = "select definition::text from holdfast.flow where name = $1"


@asynccontextmanager
async def unreadable(engine, name):
    """The flow as a newer version would write it, and a process that never read it before."""
    stored = await engine.database.fetchval(_READ, name)
    await engine.database.fetch(_LATER, name)
    async with Engine(engine.database.url, engine.settings) as opened:
        yield Dispatcher(opened)
    await engine.database.fetch(_MEND, name, stored)


async def test_its_runs_hold_up_no_pass_over_others(dispatcher, engine, clock):
    odd = await dispatcher.runs.start(a_wait(timeout_seconds=60))
    sound = await dispatcher.runs.start(replace(a_wait(timeout_seconds=60), name="shop.sound"))
    await clock.advance(61)
    async with unreadable(engine, "shop.wait") as elsewhere:
        await elsewhere.runs.repair_once()
        assert [await dispatcher.runs.state(one) for one in (odd, sound)] == ["open", "failed"]
    await dispatcher.runs.repair_once()
    assert await dispatcher.runs.state(odd) == "failed"
