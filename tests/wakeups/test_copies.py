"""Hints do not pile up, and what is wrong with one address is nobody else's trouble."""

from __future__ import annotations

import dataclasses

import pytest
import redis
from tests.waiting import eventually
from tests.wakeups.test_messages import consumer_of, received

from holdfast.core.wakeups.hint import Hint
from holdfast.engine.identity.tenants import create_tenant
from holdfast.engine.wakeups.outbox import read_wake, write_hints
from holdfast.engine.wakeups.relay import Relay
from holdfast.settings.settings import Settings
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_task

pytestmark = pytest.mark.xdist_group("carriers")


@pytest.fixture
async def relay(queue, holdfast_url, engine):
    """Hints are on, and a relay is there to be asked for single passes."""
    await write_hints(engine, True, actor="test", reason="")
    engine.settings = Settings(url=holdfast_url, wake=queue.settings(resend_seconds=0.05))
    made = Relay(engine)
    yield made
    await made.close()


async def test_of_what_nobody_serves_only_the_last_copy_is_left(transport, queue, relay, engine, harness, clock):
    await harness.enqueue(a_task(action="shop.unserved"))
    consumer = consumer_of(transport, engine, await harness.worker_id("first"), [])
    for _ in range(3):
        assert await relay.relay_once() == 1
        await clock.advance("10m")
    judged = await consumer.take(await received(transport, 3))
    assert sorted(one.reason for one in judged) == ["not_served_here", "superseded", "superseded"]
    assert queue.left() == 1


async def test_a_hint_of_another_tenant_is_left_to_its_own_workers(transport, queue, relay, engine, harness):
    other = await create_tenant(engine.database, "beta", actor="anna", reason="")
    await EngineHarness(engine.of(other.tenant_id)).enqueue(a_task())
    assert await relay.relay_once() == 1
    looked: list[int] = []
    consumer = consumer_of(transport, engine, await harness.worker_id("first"), looked)
    (judged,) = await consumer.take(await received(transport, 1))
    assert (judged.verdict, looked, queue.left()) == ("leave", [], 1)


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
async def test_a_queue_that_is_not_there_holds_up_no_other(queue, holdfast_url, engine, harness):
    await write_hints(engine, True, actor="test", reason="")
    there = queue.make(f"{queue.url.rpartition('/')[2]}-mail-eu")
    wake = dataclasses.replace(queue.settings(), sqs_queue_url=f"{queue.url}-{{queue}}")
    engine.settings = Settings(url=holdfast_url, wake=wake)
    relay = Relay(engine)
    for _ in range(3):
        await harness.enqueue(a_task(queue="gone"))
        await harness.enqueue(a_task(queue="mail.eu"))
        assert await relay.relay_once() == 1
    await relay.close()
    assert queue.left(url=there) == 3
    assert "NonExistent" in (await read_wake(engine.database)).away_detail


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
async def test_a_dead_hint_that_is_still_in_the_outbox_travels_once(queue, holdfast_url, engine, harness):
    await write_hints(engine, True, actor="test", reason="")
    dead = queue.make(f"{queue.url.rpartition('/')[2]}-dead")
    engine.settings = Settings(url=holdfast_url, wake=queue.settings(sqs_dead_letter_url=dead))
    relay = Relay(engine)
    task = await harness.enqueue(a_task())
    assert await relay.relay_once() == 1
    queue.send(f'{{"task_id": "{task.task_id}"}}', url=dead)
    await relay.revive_once()
    assert (queue.left(), queue.left(url=dead)) == (1, 0)
    assert await relay.relay_once() == 1
    await relay.close()


@pytest.mark.parametrize("queue", ["redis"], indirect=True)
async def test_what_waits_for_its_time_again_hides_nothing_behind_it(transport, queue):
    """Redis looks at ten times as many entries as it is asked for; here the last one was left too long."""
    await transport.publish([Hint(task_id=number) for number in range(1, 13)])
    first = await received(transport, 12)

    async def last_again():
        await transport.extend(first[:-1])
        return await transport.receive(1, wait_seconds=0)

    (again,) = await eventually(last_again)
    assert again.receipt == first[-1].receipt


@pytest.mark.parametrize("queue", ["redis"], indirect=True)
async def test_an_entry_that_was_trimmed_does_not_stay_pending(transport, queue):
    await transport.publish([Hint(task_id=1), Hint(task_id=2)])
    gone, kept = await received(transport, 2)
    with redis.Redis.from_url(queue.server.url) as client:
        client.xdel(transport.key, gone.receipt)
        await transport.forget_trimmed()
        pending = client.xpending_range(transport.key, "holdfast", min="-", max="+", count=10)
    assert [one["message_id"].decode() for one in pending] == [kept.receipt]
