"""A flow that this version cannot read, because a newer one wrote it or something damaged it, holds up no other."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

from tests.core.flows import a_diamond, a_wait
from tests.flow.steps import finish

from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_task

_LATER = "update holdfast.flow set definition = jsonb_set(definition, '{nodes,0,kind}', '\"later\"') where name = $1"
_MEND = "update holdfast.flow set definition = $2 where name = $1"
_READ = "select definition::text from holdfast.flow where name = $1"


@asynccontextmanager
async def unreadable(engine, name):
    """The flow as a newer version would write it, and a process that never read it before."""
    stored = await engine.database.fetchval(_READ, name)
    await engine.database.fetch(_LATER, name)
    async with Engine(engine.database.url, engine.settings) as opened:
        yield EngineHarness(opened)
    await engine.database.fetch(_MEND, name, stored)


async def test_a_worker_that_cannot_read_it_leaves_it_to_others(harness, engine, clock):
    harness.runs.policy = RetryPolicy(max_retries=1)
    run = await harness.runs.start(a_diamond())
    async with unreadable(engine, a_diamond().name) as elsewhere:
        elsewhere.know(*(node.action for node in a_diamond().nodes))
        plain = await elsewhere.enqueue(a_task())
        leases = {lease.task_id: lease for lease in await elsewhere.claim(10)}
        assert leases.pop(plain.task_id).claimed.fault is None
        for lease in leases.values():
            assert lease.claimed.fault.code == "worker_unavailable"
            await elsewhere.settle(lease, Failed(lease.claimed.fault))
    await clock.advance(60)
    await harness.reconcile_once()
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_its_runs_hold_up_no_pass_over_others(harness, engine, clock):
    odd = await harness.runs.start(a_wait(timeout_seconds=60))
    sound = await harness.runs.start(replace(a_wait(timeout_seconds=60), name="shop.sound"))
    await clock.advance(61)
    async with unreadable(engine, "shop.wait") as elsewhere:
        await elsewhere.runs.repair_once()
        assert [await harness.runs.state(one) for one in (odd, sound)] == ["open", "failed"]
    await harness.runs.repair_once()
    assert await harness.runs.state(odd) == "failed"
